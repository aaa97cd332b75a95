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
  // Returns {every, row, step, weights, columns}: arrays of the same length, null where unknown. Weights are steps
  // in each window, of which the last may have fewer; means leave out the first row (analysis/levels.py).
  async rows(group, from, to) {
    const head = await this.get("head");
    const place = group === "ranks" ? "ranks" : `steps/${group}`;
    const every = await this.levelFor(place, from, to);
    const numbers = this.chunksOf(head, every, from, to);
    const parts = await Promise.all(numbers.map((n) => this.get(`${place}/${every}/${n}`)));
    const found = { every, row: [], step: [], weights: [], columns: {} };
    parts.forEach((part, i) => {
      const begin = numbers[i] * head.chunk;
      const first = Math.max(0, Math.floor(from / every) - begin);
      const end = Math.min(part.step.length, Math.ceil(to / every) - begin);
      const before = found.row.length;
      for (let row = (begin + first) * every; row < (begin + end) * every; row += every) {
        found.row.push(row);
        found.weights.push(Math.min(every, head.steps - row) - (every > 1 && row === 0 ? 1 : 0));
      }
      found.step.push(...part.step.slice(first, end));
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

// Index of the window of `data` that the cursor is in; -1 without any.
export function rowAt(data, { row }) {
  return row === null ? -1 : data.row.findLastIndex((begin) => begin <= row);
}

// The steps of a window, in words.
export function windowOf({ every, step, weights }, i) {
  return every > 1 ? `steps from ${step[i]}, mean of ${weights[i]}` : `step ${step[i]}`;
}

// Columns of a chunk; those of a rank are named "RANK/column".
function* flat(part) {
  yield* Object.entries(part.columns ?? {});
  for (const [rank, columns] of Object.entries(part.ranks ?? {})) {
    for (const [name, values] of Object.entries(columns)) yield [`${rank}/${name}`, values];
  }
}
