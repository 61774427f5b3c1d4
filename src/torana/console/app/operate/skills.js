import { html, useState } from "../base/view.js";
import { segment } from "../base/api.js";
import { useLoad, useSignedIn } from "../base/context.js";
import { bytes } from "../base/format.js";
import { t } from "../base/i18n.js";
import { go, href } from "../base/router.js";
import { Action, ConfirmedAction, Dialog, Field, Form, ProblemNote, Spinner, State } from "../parts/controls.js";
import { difference } from "../parts/difference.js";
import { ListTable, usePages } from "../parts/page_list.js";
import { Facts, View } from "./view_parts.js";

export function SkillsView({ parts }) {
  return parts[0] ? html`<${SkillDetails} slug=${parts[0]} key=${parts[0]} />` : html`<${SkillList} />`;
}

function SkillList() {
  const { client, me } = useSignedIn();
  const [isInstalling, setInstalling] = useState(false);
  const list = usePages(() => client.get("v1/skills"), [client]);
  const columns = [
    { key: "title", label: t("skills.name"), cell: (skill) => skill.title || skill.slug },
    { key: "state", label: t("label.state"), cell: (skill) => html`<${State} value=${skill.state} /> ${skill.newerDigest && html`<span class="state attention">${t("skills.newer")}</span>`}` },
    { key: "description", label: t("skills.description"), kind: "long" },
    { key: "source", label: t("skills.source") }, { key: "version", label: t("status.version") },
    { key: "granted", label: t("skills.scripts"), cell: (skill) => t(`answer.${skill.granted ? "yes" : "no"}`) },
  ];
  const controls = me.userId === null && html`<button type="button" class="button primary" onClick=${() => setInstalling(true)}>${t("skills.install")}</button>`;
  return html`<${View} title=${t("skills.title")} controls=${controls}>
    <${ListTable} name="skills" caption=${t("skills.title")} list=${list} columns=${columns} rowHref=${(skill) => href(`skills/${segment(skill.slug)}`)} empty=${{ title: t("skills.none"), hint: t("skills.none_hint") }} />
    ${isInstalling && html`<${InstallDialog} onClose=${() => setInstalling(false)} />`}
  <//>`;
}

function InstallDialog({ onClose }) {
  const { client } = useSignedIn();
  async function submit({ source, path, file }) {
    const isFile = file instanceof File && file.size > 0;
    const skill = isFile ? await client.upload("v1/skills", file) : await client.post("v1/skills", { source, path: path || null });
    onClose();
    go(`skills/${segment(skill.slug)}`);
  }
  return html`<${Dialog} title=${t("skills.install")} onClose=${onClose}>
    <p>${t("skills.install_text")}</p>
    <${Form} submitLabel=${t("skills.install")} onSubmit=${submit} onCancel=${onClose}>
      <${Field} label=${t("skills.address")} hint=${t("skills.address_hint")}><input name="source" type="url" placeholder="https://" /><//>
      <${Field} label=${t("skills.folder")} hint=${t("skills.folder_hint")}><input name="path" /><//>
      <${Field} label=${t("skills.file")}><input name="file" type="file" accept=".zip,.tar.gz,.tgz" /><//>
    <//>
  <//>`;
}

/** One skill with what a person reviews before the agent may use it. */
function SkillDetails({ slug }) {
  const { client, can, me } = useSignedIn();
  const path = `v1/skills/${segment(slug)}`;
  const { value: skill, problem, reload } = useLoad(() => client.get(path), [client, slug]);
  if (!skill) return html`<${View} title=${slug}>${problem ? html`<${ProblemNote} problem=${problem} retry=${reload} />` : html`<${Spinner} />`}<//>`;
  const post = (name, body) => async () => { await client.post(`${path}/${name}`, body); await reload(); };
  const reviewed = skill.newer ?? (["quarantine", "changed"].includes(skill.state) ? skill.current : null);
  const isOwn = skill.source === "user" && me.userId === null;
  const controls = html`
    ${skill.state === "active" && isOwn && html`<${Action} label=${t("skills.disable")} act=${post("disable")} />`}
    ${skill.state === "disabled" && can("admin") && html`<${Action} label=${t("skills.enable")} act=${post("enable")} />`}
    ${isOwn && skill.origin && html`<${Action} label=${t("skills.update")} act=${post("update")} />`}
    ${isOwn && html`<${ConfirmedAction} compact=${false} label=${t("action.remove")} question=${t("skills.remove_question")} act=${async () => { await client.delete(path); go("skills"); }} />`}`;
  return html`<${View} title=${skill.title || slug} text=${skill.description} controls=${controls}>
    ${skill.fault && html`<p class="note problem" role="alert">${skill.fault}</p>`}
    <${Facts} facts=${[[t("label.state"), html`<${State} value=${skill.state} />`], [t("skills.source"), skill.origin ?? skill.source], [t("status.version"), skill.version], [t("skills.scripts"), t(`answer.${skill.granted ? "yes" : "no"}`)], [t("skills.digest"), skill.digest && html`<code>${skill.digest}</code>`]]} />
    ${reviewed && html`<section class="card review"><h2>${t("skills.review")}</h2>
      <${Version} version=${reviewed} />
      ${skill.newer && skill.current && html`<h3>${t("skills.difference")}</h3><${Difference} before=${skill.current.instructions} after=${skill.newer.instructions} />`}
      ${can("admin") && html`<div class="approval-buttons">
        <${Action} label=${t("skills.approve_scripts")} kind="primary" act=${post("approve", { digest: reviewed.digest, scripts: true })} />
        <${Action} label=${t("skills.approve_text")} act=${post("approve", { digest: reviewed.digest, scripts: false })} /></div>`}
    </section>`}
    ${skill.current && skill.current !== reviewed && html`<h2>${t("skills.current")}</h2><${Version} version=${skill.current} />`}
  <//>`;
}

function Version({ version }) {
  const needs = Object.entries(version.needs).filter(([, values]) => values.length > 0);
  return html`
    ${version.findings.length > 0 && html`<h3>${t("skills.findings")}</h3><ul class="findings">${version.findings.map((finding) => html`<li>
      <strong>${finding.kind}</strong> <code>${finding.file}${finding.line ? `:${finding.line}` : ""}</code><pre tabindex="0">${finding.excerpt}</pre></li>`)}</ul>`}
    ${version.moreFindings > 0 && html`<p class="hint">${t("skills.more_findings", { count: version.moreFindings })}</p>`}
    ${version.warnings.map((warning) => html`<p class="note">${warning}</p>`)}
    ${needs.length > 0 && html`<h3>${t("skills.needs")}</h3><${Facts} facts=${needs.map(([name, values]) => [t(`needs.${name}`), values.join(", ")])} />`}
    <details><summary>${t("skills.files", { count: version.files.length, size: bytes(version.bytes) })}</summary><ul class="files">${version.files.map((file) => html`<li><code>${file}</code></li>`)}</ul></details>
    <details><summary>${t("skills.instructions")}</summary><pre class="instructions" dir="auto" tabindex="0">${version.instructions}</pre></details>`;
}

function Difference({ before, after }) {
  const lines = difference(before.split("\n"), after.split("\n"));
  if (lines.every(({ kind }) => kind === "same")) return html`<p class="hint">${t("skills.no_difference")}</p>`;
  return html`<pre class="difference" tabindex="0">${lines.map(({ kind, text }) => html`<span class=${kind}>${{ same: "  ", added: "+ ", removed: "- " }[kind]}${text}${"\n"}</span>`)}</pre>`;
}
