// What the site's search finds, in place of Sphinx's own order. search.py says how pages are
// weighed, and writes KNOWN in front of this.

const PHRASE = 1000; // the whole search is a phrase of the table: more than any sum of weights
const WITHIN = 200; // a phrase of the table is a part of the search, by its share of the words
const PART = 0.5; // of its weight counts a longer word that begins with what was typed
const MOST = 20; // so many pages, and so many names, are shown

const stemmer = new Stemmer();
const stemsOf = (text) =>
  splitQuery(text.toLowerCase())
    .filter((word) => !stopwords.has(word) && !KNOWN.asking.includes(word))
    .map((word) => stemmer.stemWord(word))
    .map((stem) => KNOWN.same[stem] ?? stem);

const isKnown = (word) => Object.hasOwn(KNOWN.weights, word);

// The search without its unknown names: `soft_time_limit` and softTimeLimit are three words.
const withoutNames = (query) =>
  query.replace(/[\p{Letter}\p{Number}_]+/gu, (name) =>
    isKnown(stemsOf(name)[0])
      ? name
      : name.replace(/([\p{Ll}\p{Number}])(?=\p{Lu})/gu, "$1 ").replaceAll("_", " "),
  );

// The words of the index that a stem stands for, each with its factor: itself, or longer ones.
function knownWords(stem) {
  if (isKnown(stem)) return [[stem, 1]];
  if (stem.length < 3) return [];
  const longer = Object.keys(KNOWN.weights).filter((word) => word.startsWith(stem));
  return longer.map((word) => [word, PART]);
}

// The heading of a page that has the most words of the search, and its address.
function headingOf(name, title, stems) {
  const number = Search._index.docnames.indexOf(name);
  let best = [title, "", 0];
  for (const [heading, places] of Object.entries(Search._index.alltitles)) {
    const place = places.find(([page, anchor]) => page === number && anchor);
    if (!place || heading === title) continue;
    const words = new Set(stemsOf(heading));
    const has = stems.filter((stem) => words.has(stem)).length;
    if (has > best[2]) best = [`${title} > ${heading}`, `#${place[1]}`, has];
  }
  return best;
}

function findPages(query) {
  const scores = new Map();
  const add = (page, score) => scores.set(page, (scores.get(page) ?? 0) + score);
  const stems = stemsOf(withoutNames(query));
  for (const stem of stems) {
    const best = new Map(); // of a page, its best word: none counts twice
    for (const [word, factor] of knownWords(stem)) {
      const weights = KNOWN.weights[word];
      for (let i = 0; i < weights.length; i += 2)
        best.set(weights[i], Math.max(best.get(weights[i]) ?? 0, weights[i + 1] * factor));
    }
    best.forEach((score, page) => add(page, score));
  }
  for (let from = 0; from < stems.length; from++)
    for (let to = from + 1; to <= stems.length; to++) {
      const whole = to - from === stems.length;
      const share = whole ? PHRASE : (WITHIN * (to - from)) / stems.length;
      for (const page of KNOWN.phrases[stems.slice(from, to).join(" ")] ?? []) add(page, share);
    }
  const ordered = [...scores].sort(([, one], [, other]) => other - one).slice(0, MOST);
  return ordered.map(([page, score]) => {
    const [name, title] = KNOWN.pages[page];
    const [shown, anchor] = headingOf(name, title, stems);
    return [name, shown, anchor, null, score, `${name}.html`, SearchResultKind.text];
  });
}

Search._performSearch = (query, _terms, _excluded, _highlighted, names) => {
  const objects = [...names]
    .flatMap((name) => Search.performObjectSearch(name, names))
    .sort((one, other) => other[4] - one[4])
    .slice(0, MOST);
  // who types `submit_nowait` wants it, who types "map" wants a page
  const isName = /[a-z][A-Z]|[_.]/.test(query.trim());
  const last = query.trim().split(".").at(-1);
  const isOurs = isName && objects.some(([, name]) => name.split(".").at(-1) === last);
  const found = isOurs ? [...objects, ...findPages(query)] : [...findPages(query), ...objects];
  return found.reverse(); // Sphinx shows the last one first
};
