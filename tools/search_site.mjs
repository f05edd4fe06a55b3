// Search the built site for the words that people type, with the site's own script and index:
// node tools/search_site.mjs docs/_build tools/searches.json
//
// For each search the file names the page that answers it. Of the searches, 34 of 38 must find
// their page first, and none below the third place.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const FIRST = 34 / 38;
const LOWEST = 3;

const [site, file] = process.argv.slice(2);
const element = () => ({ replaceChildren() {}, childNodes: [] });
const world = vm.createContext({
  document: {
    addEventListener() {},
    documentElement: { dataset: { content_root: "./" } },
    getElementById: element,
    body: { dataset: {} },
  },
  DOCUMENTATION_OPTIONS: {},
  SPHINX_HIGHLIGHT_ENABLED: false,
  _: (text) => text, // no translation
  _ready() {}, // the site calls it to begin with the search in its address
  URLSearchParams,
  localStorage: { setItem() {} },
  console,
});
world.window = world;

function load(path) {
  vm.runInContext(readFileSync(join(site, path), "utf-8"), world, { filename: path });
}

for (const script of ["base-stemmer.js", "english-stemmer.js", "language_data.js"])
  load(`_static/${script}`);
load("_static/searchtools.js");
vm.runInContext("globalThis.Search = Search", world);
load("searchindex.js");

const places = Object.entries(JSON.parse(readFileSync(file, "utf-8"))).map(([typed, page]) => {
  const found = world.Search._performSearch(...world.Search._parseQuery(typed)).reverse();
  const pages = [...new Set(found.map(([name]) => name))];
  return { typed, page, place: pages.indexOf(page) + 1, first: pages[0] };
});
const first = places.filter(({ place }) => place === 1).length;
const low = places.filter(({ place }) => place === 0 || place > LOWEST);
for (const { typed, page, place, first } of places.filter(({ place }) => place !== 1))
  console.log(`${typed}: ${page} is ${place ? `number ${place}` : "not found"}, ${first} is first`);
console.log(`${first} of ${places.length} searches find their page first`);
process.exitCode = low.length || first < FIRST * places.length ? 1 : 0;
