// Starts the page of a file that holds its modules and pieces (report/html.py).
// Modules import each other by relative names, which a file does not have: they become blobs.
// Each stands after what it imports; the last one shows the page.

const read = (id) => JSON.parse(document.getElementById(id).textContent);
const places = new Map();
for (const [name, text] of read("modules")) {
  const linked = text.replace(/from "\.\/([^"]+)"/g, (_, other) => `from "${places.get(other)}"`);
  places.set(name, URL.createObjectURL(new Blob([linked], { type: "text/javascript" })));
}
const pieces = read("pieces");

async function get(path) {
  if (!(path in pieces)) throw new Error(`This file does not hold ${path}.`);
  const bytes = Uint8Array.from(atob(pieces[path]), (c) => c.charCodeAt(0));
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(inflated).json();
}

const { show, Source } = await import([...places.values()].at(-1));
show(document.body, new Source(get, (path) => path in pieces));
