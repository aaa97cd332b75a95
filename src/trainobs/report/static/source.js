// The pieces of a run, fetched once each, and rows of them at the resolution that a screen needs.
// analysis/view.py says which pieces there are.

const MOST_WINDOWS = 2048;

export class Source {
  // `get(path)` gives a promise of a piece; `has(path)` says whether it can be had.
  constructor(get, has = () => true) {
    this.getPiece = get;
    this.has = has;
    this.pieces = new Map();
  }

  get(path) {
    if (!this.pieces.has(path)) {
      const piece = this.getPiece(path);
      piece.catch(() => this.pieces.delete(path)); // asked for again, it may come
      this.pieces.set(path, piece);
    }
    return this.pieces.get(path);
  }

  // Forget everything: the run has gone on.
  forget() {
    this.pieces.clear();
  }

  // The finest level that shows the rows [from, to) in few enough windows, and can be had.
  async levelFor(place, from, to) {
    const { levels } = await this.get("head");
    const fits = levels.filter((every) => (to - from) / every <= MOST_WINDOWS);
    const [coarsest] = levels.slice(-1);
    const chunks = async (every) => this.chunksOf(await this.get("head"), every, from, to);
    for (const every of fits) {
      if ((await chunks(every)).every((n) => this.has(`${place}/${every}/${n}`))) return every;
    }
    return coarsest;
  }

  chunksOf({ chunk, steps }, every, from, to) {
    const first = Math.floor(from / (every * chunk));
    const last = Math.floor((Math.min(to, steps) - 1) / (every * chunk));
    return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => first + i);
  }

  // Windows of the rows [from, to) of a group of columns.
  // Returns {every, row, step, at_s, columns}: arrays of the same length, null where unknown.
  async rows(group, from, to) {
    const head = await this.get("head");
    const place = group === "ranks" ? "ranks" : `steps/${group}`;
    const every = await this.levelFor(place, from, to);
    const numbers = this.chunksOf(head, every, from, to);
    const parts = await Promise.all(numbers.map((n) => this.get(`${place}/${every}/${n}`)));
    const found = { every, row: [], step: [], at_s: [], columns: {} };
    parts.forEach((part, i) => {
      const begin = numbers[i] * head.chunk;
      const first = Math.max(0, Math.floor(from / every) - begin);
      const end = Math.min(part.step.length, Math.ceil(to / every) - begin);
      const before = found.row.length;
      for (let k = first; k < end; k++) found.row.push((begin + k) * every);
      found.step.push(...part.step.slice(first, end));
      found.at_s.push(...(part.at_s ?? []).slice(first, end));
      for (const [name, values] of flat(part)) {
        found.columns[name] ??= new Array(before).fill(null);
        found.columns[name].push(...values.slice(first, end));
      }
      for (const column of Object.values(found.columns)) {
        while (column.length < found.row.length) column.push(null);
      }
    });
    return found;
  }
}

// Columns of a chunk; those of a rank are named "RANK/column".
function* flat(part) {
  yield* Object.entries(part.columns ?? {});
  for (const [rank, columns] of Object.entries(part.ranks ?? {})) {
    for (const [name, values] of Object.entries(columns)) yield [`${rank}/${name}`, values];
  }
}
