import { texts } from "./page_data.js";
import { local } from "./storage.js";
import { Store } from "./store.js";

const STORED = "torana.language";
const { composed, ...languages } = texts;

/** The numbers of the texts whose keys are composed, such as `state.${value}`; the gateway numbers all other keys. */
const numbers = new Map(composed.split(" ").map((key, place, all) => [key, languages.en.length - all.length + place]));

/** The code of the language of the page. */
export const language = new Store(initialLanguage());

/** The codes of all languages. */
export const languageCodes = Object.keys(languages);

export function setLanguage(code) {
  local.set(STORED, code);
  applyLanguage(code);
}

export function applyLanguage(code = language.value) {
  document.documentElement.lang = code;
  language.set(code);
}

/** Return the text of a key in the language of the page, with the values of its `{names}`. */
export function t(key, values = {}) {
  const text = languages[language.value][numbers.get(key) ?? key] ?? key;
  return text.replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ""));
}

/** Return the text of a key whose form depends on a count: `key.one` or `key.other`. */
export function plural(key, count) {
  const form = new Intl.PluralRules(language.value).select(count) === "one" ? "one" : "other";
  return t(`${key}.${form}`, { count: new Intl.NumberFormat(language.value).format(count) });
}

/** Return the text of a problem: of its code if the page has one, else the gateway's own words. */
export function problemText(problem) {
  const key = `problem.${problem.code}`;
  return numbers.has(key) ? t(key) : problem.message;
}

function initialLanguage() {
  const wanted = [local.get(STORED), ...navigator.languages];
  const codes = wanted.filter(Boolean).map((tag) => tag.slice(0, 2).toLowerCase());
  return codes.find((code) => code in languages) ?? "en";
}
