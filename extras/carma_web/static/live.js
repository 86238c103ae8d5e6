// Keeps a page up to date: an element with `data-on` is a part of the page, and is fetched again
// when the server says that one of the things it depends on is new.
"use strict";

const shown = new Map(); // the tag of each part, as last fetched
const fetching = new Map(); // the parts, and whether to fetch them once more

let answered = Date.now(); // the page was up to date then
let since = ""; // in words, when that ended

// Why the page is not up to date; nothing, if it is.
function tell(text) {
  const state = document.getElementById("state");
  if (text && state.hidden) {
    const then = new Date(Math.max(answered, Date.now() - 60_000)); // some pages seldom ask
    since = then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  }
  if (!text) answered = Date.now();
  state.textContent = text.replace("SINCE", since);
  state.hidden = !text;
}

const AWAY = "carmad has not answered since SINCE: this is how it was";
const CUT_OFF = "not connected since SINCE: this is how it was";

function renew(part, html) {
  Idiomorph.morph(part, html, {
    morphStyle: "innerHTML",
    ignoreActiveValue: true,
    callbacks: {
      // The reader opened or closed it; scripts draw charts, and write times.
      beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS"),
      beforeNodeMorphed: (node, fresh) => !(node instanceof Element && (
        node.hasAttribute("data-keep") || (node.dateTime && node.dateTime === fresh.dateTime)
      )),
    },
  });
}

function trouble(status) {
  if (status === 503) return AWAY;
  if (status === 401) return "open the link again that carma web printed: this is how it was";
  return "this has changed: load the page again"; // it is gone, or no more for this user
}

async function refresh(part) {
  if (fetching.has(part.id)) return fetching.set(part.id, true);
  fetching.set(part.id, false);
  try {
    const url = new URL(location.href);
    url.searchParams.set("part", part.id);
    const tag = shown.get(part.id);
    const answer = await fetch(url, { headers: tag ? { "If-None-Match": tag } : {} });
    if (answer.status === 304) return tell("");
    if (!answer.ok) return tell(trouble(answer.status));
    shown.set(part.id, answer.headers.get("ETag"));
    renew(part, await answer.text());
    part.dispatchEvent(new CustomEvent("refreshed", { bubbles: true }));
    tell("");
    ago();
  } catch {
    tell(CUT_OFF);
  } finally {
    const again = fetching.get(part.id);
    fetching.delete(part.id);
    if (again) refresh(part);
  }
}

function news(what) {
  if (what.has("away")) tell(AWAY);
  for (const part of document.querySelectorAll("[data-on]")) {
    if (part.dataset.on.split(" ").some((each) => what.has(each))) refresh(part);
  }
  document.dispatchEvent(new CustomEvent("news", { detail: what }));
}

// "3 min ago", or "in 2 h": kept by the page, so that parts need not be sent for it.
function ago() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
    const size = Math.abs(seconds);
    const text =
      size < 90 ? `${Math.round(size)} s`
      : size < 5400 ? `${Math.round(size / 60)} min`
      : size < 129600 ? `${(size / 3600).toFixed(1)} h`
      : `${(size / 86400).toFixed(1)} days`;
    const words = seconds < 0 ? `in ${text}` : `${text} ago`;
    if (time.textContent !== words) time.textContent = words;
  }
}

document.addEventListener("pointerover", ({ target }) => {
  if (target.matches("time[data-ago]")) target.title = new Date(target.dateTime).toLocaleString();
});

function themed(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
}

themed(localStorage.getItem("theme"));
document.getElementById("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  localStorage.setItem("theme", dark ? "light" : "dark");
  themed(dark ? "light" : "dark");
});

// A form that only looks for something: its part follows what is typed.
for (const form of document.querySelectorAll("form[data-filters]")) {
  let waiting = 0;
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const given = [...new FormData(form)].filter(([, value]) => value);
      history.replaceState(null, "", `?${new URLSearchParams(given)}`);
      refresh(document.getElementById(form.dataset.filters));
    }, 150);
  });
}

document.addEventListener("keydown", (event) => {
  const field = document.querySelector("[data-find]");
  if (event.key !== "/" || !field || event.target.closest("input, select, textarea")) return;
  event.preventDefault();
  field.focus();
});

// A browser has six connections to a server for all of its tabs: only those that are seen keep one,
// and of many windows that are seen, four. The others take turns.
const REST_MS = 10_000;
let source = null;
let behind = false; // there may have been news that nobody told

function browser() {
  let name = localStorage.getItem("browser");
  if (!name) localStorage.setItem("browser", name = Math.random().toString(36).slice(2));
  return name;
}

function leave() {
  source?.close();
  source = null;
  behind = true;
}

function listen() {
  if (document.hidden) return leave();
  if (source?.readyState < EventSource.CLOSED) return;
  source = new EventSource(`${document.body.dataset.base}/live?browser=${browser()}`);
  source.onmessage = (event) => news(new Set(event.data.split(" ")));
  source.onerror = () => {
    behind = true;
    tell(CUT_OFF);
    if (source.readyState < EventSource.CLOSED) return;
    news(new Set(["news"])); // the answer was no stream: that of a part says why
    setTimeout(listen, REST_MS);
  };
  source.addEventListener("full", () => {
    leave();
    setTimeout(listen, document.hasFocus() ? REST_MS / 10 : REST_MS);
  });
  source.onopen = () => {
    if (!document.querySelector("[data-on]")) tell(""); // otherwise, its parts say so
    if (behind) news(new Set(["readings", "news"]));
    behind = false;
  };
}

document.addEventListener("visibilitychange", listen);
addEventListener("focus", listen);
listen();
setInterval(ago, 1000);
ago();

// What draws charts, once the page is seen: uPlot alone takes as long to start as the first picture.
requestAnimationFrame(() => setTimeout(() => {
  for (const { content } of document.querySelectorAll("meta[name=script]")) {
    const script = document.createElement("script");
    script.async = false;
    script.src = content;
    document.head.append(script);
  }
}));
