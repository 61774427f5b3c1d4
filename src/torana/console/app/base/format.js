/** Numbers, times and sizes in the language of the page. */
import { language } from "./i18n.js";

export function number(value) {
  return value === null || value === undefined ? "" : new Intl.NumberFormat(language.value).format(value);
}

/** Return dollars with as many digits as the amount needs, to the micro-dollar. */
export function money(dollars) {
  return new Intl.NumberFormat(language.value, {
    style: "currency", currency: "USD", minimumFractionDigits: 2, maximumFractionDigits: 6,
  }).format(dollars);
}

export function bytes(count) {
  const units = ["byte", "kilobyte", "megabyte"];
  const power = Math.min(Math.floor(Math.log10(Math.max(count, 1)) / 3), 2);
  return new Intl.NumberFormat(language.value, {
    style: "unit", unit: units[power], unitDisplay: "short", maximumFractionDigits: 1,
  }).format(count / 1000 ** power);
}

/** Return a duration of seconds, such as `850 ms`, `12.3 s` or `2 h 5 min`. */
export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

/** Return the seconds between two times of the interface; without an end, until now. */
export function secondsBetween(start, end) {
  return Math.max(0, (end ? Date.parse(end) : Date.now()) - Date.parse(start)) / 1000;
}

/** Return a time of day for today, else a date with the time. */
export function time(text) {
  if (!text) return "";
  const at = new Date(text);
  const isToday = at.toDateString() === new Date().toDateString();
  const date = isToday ? {} : { day: "numeric", month: "short" };
  const year = at.getFullYear() === new Date().getFullYear() ? {} : { year: "numeric" };
  return new Intl.DateTimeFormat(language.value, { ...date, ...year, hour: "2-digit", minute: "2-digit" }).format(at);
}

/** Return a complete date and time, for the title of a short one. */
export function fullTime(text) {
  if (!text) return "";
  return new Intl.DateTimeFormat(language.value, { dateStyle: "full", timeStyle: "medium" }).format(new Date(text));
}

/** Return the heading of a list for a date: today, yesterday, or the month. */
export function dayGroup(text, t) {
  const at = new Date(text);
  const days = Math.floor((new Date().setHours(0, 0, 0, 0) - new Date(at).setHours(0, 0, 0, 0)) / 86_400_000);
  if (days <= 0) return t("date.today");
  if (days === 1) return t("date.yesterday");
  if (days < 7) return t("date.week");
  return new Intl.DateTimeFormat(language.value, { month: "long", year: "numeric" }).format(at);
}
