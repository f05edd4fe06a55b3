// Search the built site for the words that people type, with the site's own script and index:
// node tools/search_site.mjs docs/_build tools/searches.json
//
// For each search the file names the pages of which one answers it. Of 60 searches 55 must find
// such a page first. The searches are words of other tools, and of those who ask about them: when
// some are added, see first how many they find, and give their words to docs/words.md then.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const FIRST = 55 / 60;

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
load("_static/search.js");

const searches = Object.entries(JSON.parse(readFileSync(file, "utf-8")));
let first = 0;
for (const [typed, answers] of searches) {
  const found = world.Search._performSearch(...world.Search._parseQuery(typed)).reverse();
  const pages = [...new Set(found.map(([name]) => name))];
  if (answers.includes(pages[0])) first += 1;
  else console.log(`${typed}: ${pages[0]} comes before ${answers.join(", ")}`);
}
console.log(`${first} of ${searches.length} searches find their page first`);
process.exitCode = first < FIRST * searches.length ? 1 : 0;
