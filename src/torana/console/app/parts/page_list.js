import { html, useEffect, useState } from "../base/view.js";
import { t } from "../base/i18n.js";
import { Empty, ProblemNote, Spinner } from "./controls.js";
import { saveAs } from "./save.js";

const EXPORT_LIMIT = 10_000;

/**
 * A list of the interface, a page at a time: `{ items, problem, isLoading, hasMore, more, reload, all }`.
 *
 * `load(after)` returns `{ items, next }`. `reload` loads as many items again as are shown.
 */
export function usePages(load, dependencies) {
  const [state, setState] = useState({ items: null, next: null, problem: null, isLoading: true });

  async function run(after, before, count) {
    setState((now) => ({ ...now, isLoading: true, problem: null }));
    try {
      const items = [...before];
      let next = after;
      do {
        const page = await load(next);
        items.push(...page.items);
        next = page.next ?? null;
      } while (next && items.length < count);
      setState({ items, next, problem: null, isLoading: false });
    } catch (problem) {
      setState((now) => ({ ...now, problem, isLoading: false }));
    }
  }

  useEffect(() => { run(null, [], 1); }, dependencies);
  return {
    ...state,
    hasMore: state.next !== null,
    more: () => run(state.next, state.items, 0),
    reload: () => run(null, [], state.items?.length ?? 1),
    async all() {
      const items = [];
      let next = null;
      do {
        const page = await load(next);
        items.push(...page.items);
        next = page.next ?? null;
      } while (next && items.length < EXPORT_LIMIT);
      return items;
    },
  };
}

/**
 * A table of a list with its states: loading, failed, empty, and more to load. It exports CSV and JSON.
 *
 * Each column is `{ key, label, cell, value, kind }`: `cell(item)` is shown, and `value(item)` is exported;
 * without them both are `item[key]`. `kind` "number" aligns to the right, "short" is cut off, and "unseen"
 * is only exported.
 */
export function ListTable({ name, list, columns, empty, rowHref, rowClass, caption }) {
  const { items } = list;
  if (items === null) return list.problem ? html`<${ProblemNote} problem=${list.problem} retry=${list.reload} />` : html`<${Spinner} />`;
  return html`
    ${list.problem && html`<${ProblemNote} problem=${list.problem} retry=${list.reload} />`}
    ${items.length === 0 ? html`<${Empty} ...${empty} />` : html`
      <div class="table-frame" tabindex="0" role="region" aria-label=${caption}>
        <table class="table">
          <caption class="hidden">${caption}</caption>
          <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.kind}>${column.label || html`<span class="hidden">${t("label.actions")}</span>`}</th>`)}</tr></thead>
          <tbody>${items.map((item, place) => html`
            <tr key=${item.id ?? place} class=${rowClass?.(item)}>${columns.map((column, position) => html`
              <td class=${column.kind} data-label=${column.label} title=${column.kind === "short" ? item[column.key] : undefined}>
                ${position === 0 && rowHref ? html`<a href=${rowHref(item)}>${shown(column, item)}</a>` : shown(column, item)}
              </td>`)}
            </tr>`)}
          </tbody>
        </table>
      </div>
      <div class="list-footer">
        ${list.hasMore && html`<button type="button" class="button plain" disabled=${list.isLoading} onClick=${list.more}>${t("action.more")}</button>`}
        <${ExportButtons} name=${name} columns=${columns} all=${list.all} />
      </div>`}`;
}

function ExportButtons({ name, columns, all }) {
  const [problem, setProblem] = useState(null);
  async function save(form) {
    try {
      const items = await all();
      if (form === "json") saveAs(`${name}.json`, "application/json", JSON.stringify(items, null, 2));
      else saveAs(`${name}.csv`, "text/csv", csv(columns, items));
    } catch (failure) {
      setProblem(failure);
    }
  }
  return html`<span class="export">
    <button type="button" class="button plain compact" onClick=${() => save("csv")}>${t("action.csv")}</button>
    <button type="button" class="button plain compact" onClick=${() => save("json")}>${t("action.json")}</button>
    ${problem && html`<${ProblemNote} problem=${problem} />`}
  </span>`;
}

/** Return CSV (RFC 4180). A leading character that spreadsheets read as a formula is quoted with an apostrophe. */
function csv(columns, items) {
  const rows = [columns.filter((column) => column.label).map((column) => column.label)];
  for (const item of items) rows.push(columns.filter((column) => column.label).map((column) => exported(column, item)));
  return rows.map((row) => row.map(csvCell).join(",")).join("\r\n") + "\r\n";
}

function csvCell(value) {
  const text = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function shown(column, item) {
  return column.cell ? column.cell(item) : item[column.key];
}

function exported(column, item) {
  return column.value ? column.value(item) : item[column.key];
}
