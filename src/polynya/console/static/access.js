// Access: the tokens of the node, and its audit log. Both need a token with `admin`.

import { actRow, askAct, secretOf, send } from "./acts.js";
import { askJson, curl, url } from "./api.js";
import { cli } from "./commands.js";
import { h, put } from "./dom.js";
import { count, instant, parseSeconds, parseSize, visible } from "./format.js";
import { curlButton, grid, page } from "./page.js";
import { Rows } from "./rows.js";

const POLL_MS = 5000;
const LINES = 200;
const TOKENS_MAX = 500;
const SCOPE = /^[a-z]+(,[a-z]+)*(:.*)?$/;
const TOKENS = "v1/admin/tokens";
const AUDIT = "v1/admin/audit";

export function open(place, shell) {
  const abort = new AbortController();
  const tokens = h("tbody", {});
  const tokenRows = new Rows(tokens);
  const acts = h("tbody", {});
  const noTokens = h("p", { class: "quiet", role: "status", hidden: true });
  const noActs = h("p", { class: "quiet", role: "status", hidden: true });
  const filter = h("input", { type: "search", id: "act", placeholder: "stream.delete, a name, 403", autocomplete: "off", spellcheck: "false" });
  let lines = [];
  let timer = 0;
  filter.addEventListener("input", drawActs);
  const element = page(
    "Access",
    [curlButton(command), actRow([["Create a token …", () => createToken(shell, again), "primary"]])],
    h("h2", {}, "Tokens"),
    h("div", { class: "panel scroll" }, grid("nodes tokens", [["Name"], ["State"], ["Scopes"], ["Created"], ["Expires"], ["Limits"], ["Act"]], tokens), noTokens),
    h(
      "div",
      { class: "head" },
      h("h2", {}, "Audit log of this node"),
      h("label", { class: "search" }, h("span", { class: "label" }, "Show only lines with"), filter, h("kbd", {}, "/")),
    ),
    h("div", { class: "panel scroll" }, grid("nodes audit", [["Time"], ["Act"], ["Target"], ["Who"], ["From"], ["Outcome"]], acts), noActs),
  );

  function command() {
    shell.copy(curl(url(AUDIT)), "The command");
  }

  function again() {
    clearTimeout(timer);
    poll();
  }

  async function poll() {
    const begun = performance.now();
    if (!document.hidden) {
      await part(noTokens, "tokens", async (options) => drawTokens(await askJson(TOKENS, {}, options)));
      await part(noActs, "audit log", async (options) => {
        lines = (await askJson(AUDIT, { limit: LINES }, options)).acts;
        drawActs();
      });
    }
    if (!abort.signal.aborted) timer = setTimeout(poll, Math.max(POLL_MS, 8 * (performance.now() - begun)));
  }

  async function part(note, what, draw) {
    try {
      await draw({ signal: abort.signal });
    } catch (error) {
      if (abort.signal.aborted) return;
      note.hidden = false;
      put(note, error.status === 403 || error.status === 404 ? `No access to the ${what}: ${error.message}` : `The ${what} cannot be read: ${error.message}. Retrying …`);
    }
  }

  function drawTokens({ tokens: found, acls = [] }) {
    const shown = [...found].sort((one, other) => Number(other.state === "active") - Number(one.state === "active") || other.created_ms - one.created_ms);
    const key = (token) => JSON.stringify([token, aclsOf(token.name, acls)]); // a row is made again if anything in it changed
    tokenRows.show(shown.slice(0, TOKENS_MAX), key, (token) => tokenRow(token, acls, () => revokeToken(shell, token, again)));
    noTokens.hidden = true;
  }

  function drawActs() {
    const wanted = filter.value.trim().toLowerCase();
    const shown = lines.filter((line) => !wanted || Object.values(line).join(" ").toLowerCase().includes(wanted));
    put(acts, shown.map(actRowOf));
    noActs.hidden = shown.length > 0;
    put(noActs, lines.length ? "No line has this text." : "The audit log is empty.");
  }

  poll();
  return {
    title: "Access",
    element,
    keys: { "/": () => filter.select() ?? filter.focus(), c: command },
    close: () => {
      abort.abort();
      clearTimeout(timer);
    },
  };
}

// of Kafka's tools: `User:NAME OPERATION on TYPE PATTERN NAME`
const aclsOf = (name, acls) => acls.filter((acl) => acl.startsWith(`User:${name} `)).map((acl) => acl.slice(`User:${name} `.length));

function tokenRow(token, acls, revoke) {
  const isActive = token.state === "active";
  const limits = Object.entries(token.limits ?? {}).filter(([, value]) => value);
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("span", { class: "name" }, visible(token.name)), h("span", { class: "help" }, visible(token.id))),
    h("td", { class: "outcome" }, h("span", { class: `mark ${isActive ? "good" : "warn"}` }, visible(token.state))),
    h("td", { class: "scopes" }, [...token.scopes, ...aclsOf(token.name, acls)].map((scope) => h("div", {}, h("code", {}, visible(scope))))),
    h("td", { class: "moment-always created" }, instant(token.created_ms)),
    h("td", { class: "moment-always expires" }, token.expires_ms === null ? "never" : instant(token.expires_ms)),
    h("td", {}, limits.map(([name, value]) => h("div", {}, `${name.replaceAll("_", " ")}: ${count(value)}`))),
    h("td", {}, isActive ? actRow([["Revoke …", revoke, "danger small"]]) : null),
  );
}

function actRowOf(line) {
  const failed = !/^(ok|2\d\d)$/.test(line.outcome ?? "ok");
  return h(
    "tr",
    {},
    h("td", { class: "moment-always" }, instant(line.time)),
    h("td", {}, h("code", {}, visible(line.act))),
    h("td", {}, h("code", {}, visible(line.target))),
    h("td", {}, visible(line.who)),
    h("td", {}, visible(line.from ?? "")),
    h("td", { class: "outcome" }, h("span", { class: failed ? "mark warn" : "mark good" }, visible(line.outcome ?? "ok"))),
  );
}

// --- acts on tokens -----------------------------------------------------------------------------------------------------------------------

function createToken(shell, done) {
  const scopesOf = (text) => text.split(/\s+/).filter(Boolean);
  askAct(shell, {
    title: "Create a token",
    word: "Create",
    fields: [
      { name: "name", label: "Name", placeholder: "shop" },
      { name: "scopes", label: "Scopes", kind: "area", rows: 3, placeholder: "read,append:orders/", help: "one VERB[,VERB][:PREFIX] a line; verbs: read, append, create, delete, subscribe, table, metrics, admin, all" },
      { name: "expires", label: "Expires after", placeholder: "30d", help: "empty: never" },
      { name: "requests", label: "Requests a second", help: "empty: no limit of its own" },
      { name: "bytes", label: "Bytes a second", placeholder: "10MB", help: "empty: no limit of its own" },
    ],
    check: ({ name, scopes, expires, requests, bytes }) => {
      if (!name) return "The name is missing.";
      if (!scopesOf(scopes).length) return "A scope is missing.";
      const wrong = scopesOf(scopes).find((scope) => !SCOPE.test(scope));
      if (wrong) return `“${visible(wrong)}” is no scope; expected a form like read,append:orders/.`;
      if (expires && parseSeconds(expires) === null) return `“${visible(expires)}” is no duration; expected a form like 30d.`;
      if (requests && !/^\d{1,9}$/.test(requests)) return "The requests a second are no number.";
      return bytes && parseSize(bytes) === null ? `“${visible(bytes)}” is no size; expected a form like 10MB.` : "";
    },
    note: ({ scopes }) => (scopesOf(scopes).some((scope) => /^(.*,)?admin/.test(scope)) ? "This token may do everything, also create other tokens." : ""),
    command: ({ name, scopes, expires, requests, bytes }) =>
      cli("token create", [name], { "--allow": scopesOf(scopes), "--expires": expires, "--requests": requests, "--bytes": bytes ? parseSize(bytes) : "" }),
    run: async ({ name, scopes, expires, requests, bytes }) => {
      const limits = { ...(requests ? { requests_per_second: Number(requests) } : {}), ...(bytes ? { bytes_per_second: parseSize(bytes) } : {}) };
      const json = { name, scopes: scopesOf(scopes), expires_in_seconds: expires ? parseSeconds(expires) : null, limits };
      const { token } = await (await send(url(TOKENS), { json })).json();
      return secretOf(`The secret of ${visible(name)}. The node keeps its hash alone and cannot show it again:`, token.secret);
    },
    done,
  });
}

function revokeToken(shell, token, done) {
  askAct(shell, {
    title: `Revoke ${visible(token.name)}?`,
    word: "Revoke the token",
    danger: true,
    intro: "Its requests are refused and its readers disconnected within a quarter of a second. A token cannot be restored.",
    typed: token.name,
    command: () => cli("token revoke", [token.id]),
    run: async () => {
      await send(url(`${TOKENS}/${encodeURIComponent(token.id)}`), { method: "DELETE" });
      return `${visible(token.name)} was revoked.`;
    },
    done,
  });
}
