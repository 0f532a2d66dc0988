// The search page. What is asked stands in the address: ?q=TEXT or ?row=N or ?photo=NUMBER, with first and top, and
// not, what photos should not show.
// Answers come as JSON; every text is set as text, never as HTML.

const $ = (id) => document.getElementById(id);
const photos = new Map();             // photos that were dropped since the page was opened, by the time of their arrival
let about = null;                     // what is searched
const without = $("without").querySelector("input");
let latest = 0;                       // number of the latest question: answers to an older one are not shown

const percent = (p) => p < 0.005 ? "under 1%" : p >= 0.995 ? "over 99%" : `${Math.round(100 * p)}%`;
const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

// What the address asks: {q | row | photo, first, top} as texts, or null.
function asked() {
  const fields = Object.fromEntries(new URLSearchParams(location.search));
  return "q" in fields || "row" in fields || "photo" in fields ? fields : null;
}

const link = (fields) => Object.keys(fields).length ? `/?${new URLSearchParams(fields)}` : "/";

function go(fields) {
  history.pushState(null, "", link(fields));
  scrollTo(0, 0);
  show();
}

// The JSON of a response. Throws an Error whose message is one sentence.
async function read(response) {
  let body = null;
  try {
    body = await response.json();
  } catch {
    throw new Error(`The server answers with status ${response.status} and no sentence.`);
  }
  if (!response.ok) throw new Error(body.error);
  return body;
}

// The answers to what is asked.
async function ask({photo, ...fields}) {
  const address = new URLSearchParams(fields);
  if (photo === undefined) return read(await fetch(`/search?${address}`));
  const file = photos.get(photo);
  if (!file) throw new Error("The photo of this search is no longer at hand; drop it here again.");
  if (file.size > about.bytes)
    throw new Error(`${file.name} has ${file.size.toLocaleString("en")} bytes, and at most ` +
                    `${about.bytes.toLocaleString("en")} are read; make a smaller copy of it.`);
  return read(await fetch(`/photo-query?${address}`, {method: "POST", body: file}));
}

// Show the answers to what the address asks.
async function show() {
  const fields = asked(), mine = ++latest;
  $("start").hidden = fields !== null;
  $("error").hidden = true;
  $("text").value = fields?.q ?? "";
  without.value = fields?.not ?? "";
  document.title = fields?.q ? `${fields.q} - ${about.title}` : about.title;
  if (!fields) return clear();
  $("found").setAttribute("aria-busy", "true");
  try {
    const found = await ask(fields);
    if (mine === latest) draw(fields, found);
  } catch (error) {
    if (mine !== latest) return;
    clear();
    $("error").textContent = error instanceof TypeError
      ? "The server does not answer; it may have been closed." : error.message;
    $("error").hidden = false;
  } finally {
    if (mine === latest) $("found").setAttribute("aria-busy", "false");
  }
}

function clear() {
  for (const id of ["asked", "notes", "answers", "facts"]) $(id).replaceChildren();
  for (const id of ["verdict", "pages"]) $(id).hidden = true;
}

function draw(fields, found) {
  clear();
  drawQuery(fields, found);
  $("verdict").hidden = found.said === null;
  $("said").textContent = found.said ?? "";
  bar($("sure"), found.sure ?? 0);
  const facts = [];
  if (found.set_said !== null)
    facts.push(found.in_set === null ? found.set_said : element("b", `${found.set_said} (framed)`));
  if (found.query_said !== null) facts.push(found.query_said);
  facts.push(`${count(found.gallery, "photo")} searched`);
  if (!about.calibrated) facts.push("scores without probabilities: the model was not calibrated");
  $("facts").append(...facts.flatMap((fact, k) => k ? [" \u00b7 ", fact] : [fact]));
  const always = about.calibrated && found.sure === null ? [] : about.notes;   // they are about probabilities
  $("notes").append(...[...always, ...found.notes].map((note) => element("li", note)));
  $("answers").start = found.first + 1;
  $("answers").append(...found.answers.map((answer, k) => card(answer, found.first + k + 1, fields, found)));
  drawPages(fields, found);
}

function drawQuery(fields, found) {
  if (fields.q !== undefined) return;                     // it stands in the search box
  const image = document.createElement("img");
  image.alt = "the photo that is searched with";
  image.src = fields.row === undefined ? photos.get(fields.photo).url ??= URL.createObjectURL(photos.get(fields.photo))
    : `/thumb/${encodeURIComponent(fields.row)}`;
  image.onerror = () => image.remove();
  const name = fields.row === undefined ? photos.get(fields.photo).name : found.query;
  $("asked").append(image, element("span", `photos like ${name}`));
}

function drawPages(fields, found) {
  const last = found.first + found.answers.length;
  $("places").textContent = found.answers.length ? `${found.first + 1} to ${last} of ${found.gallery.toLocaleString("en")}`
    : "no more photos";
  $("pages").hidden = false;
  place($("previous"), fields, found.first > 0 ? Math.max(0, found.first - found.top) : null);
  place($("next"), fields, last < found.gallery && found.answers.length ? last : null);
}

function place(anchor, fields, first) {
  if (first === null) anchor.removeAttribute("href");
  else anchor.href = link({...fields, first});
}

function card(answer, number, fields, found) {
  const li = $("card").content.firstElementChild.cloneNode(true), part = (name) => li.querySelector(`.${name}`);
  const image = li.querySelector("img"), photo = part("photo");
  const gone = () => {
    image.remove();
    part("gone").hidden = false;
    photo.removeAttribute("href");
  };
  image.alt = answer.name;
  image.onerror = gone;
  Object.assign(photo, {href: `/photo/${answer.row}`, target: "_blank", rel: "noopener"});
  if (answer.gone) gone();
  else image.src = `/thumb/${answer.row}`;
  const cut = answer.name.lastIndexOf("/") + 1;
  part("name").textContent = answer.name.slice(cut);
  part("folder").textContent = answer.name.slice(0, cut);
  part("name").title = part("folder").title = answer.name;
  part("score").textContent = answer.score.toFixed(3);
  part("score").title = "score: higher is better";
  if (answer.p === null) {
    part("bar").remove();
    part("p").remove();
  } else {
    part("p").textContent = percent(answer.p);
    part("bar").ariaLabel = `${percent(answer.p)} likely`;
    bar(part("bar"), answer.p);
  }
  part("unsure").hidden = !answer.unsure;
  const framed = answer.in_set === true && found.in_set < found.first + found.answers.length;   // not all that are shown
  li.classList.toggle("of-set", framed);
  if (framed) li.title = "in the set that is held to have the right photo";
  part("like").href = link({row: answer.row, ...(fields.top && {top: fields.top})});
  part("like").ariaLabel = `more like ${answer.name}`;
  if (answer.uncertainty === null || found.expected !== null) part("uncertainty").remove();
  else {
    part("uncertainty").textContent = `unc. ${answer.uncertainty.toFixed(1)}`;
    part("uncertainty").title = "uncertainty of the photo in nats";
  }
  li.value = number;
  return li;
}

function bar(outer, p) {
  outer.firstElementChild.style.width = `${100 * p}%`;
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function searchWith(file) {
  if (!file) return;
  const key = String(Date.now());
  photos.set(key, file);
  go({photo: key, ...size()});
}

// The number of answers at a time, where the address gives one.
function size() {
  const fields = asked();
  return fields?.top ? {top: fields.top} : {};
}

// ---- what the user does

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const q = $("text").value.trim();
  const fields = asked(), of = q ? {q} : fields?.row ? {row: fields.row} : fields?.photo ? {photo: fields.photo} : null;
  if (of) go({...of, ...(without.value.trim() && {not: without.value.trim()}), ...size()});
});
$("file").addEventListener("change", () => {
  searchWith($("file").files[0]);
  $("file").value = "";                                   // the same photo can be chosen again
});
document.addEventListener("click", (event) => {           // links within the page, unless they open elsewhere
  const anchor = event.target.closest("a[href]");
  if (!anchor || anchor.target || anchor.pathname !== "/" || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  go(Object.fromEntries(new URL(anchor.href).searchParams));
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target === $("text")) return;
  event.preventDefault();
  $("text").focus();
  $("text").select();
});
let inside = 0;                                           // enter and leave come for every element that is crossed
const files = (event) => event.dataTransfer?.types.includes("Files");
addEventListener("dragenter", (event) => {
  if (files(event)) $("drop").hidden = ++inside === 0;
});
addEventListener("dragleave", (event) => {
  if (files(event)) $("drop").hidden = --inside <= 0;
});
addEventListener("dragover", (event) => {
  if (files(event)) event.preventDefault();
});
addEventListener("drop", (event) => {
  if (!files(event)) return;
  event.preventDefault();
  inside = 0;
  $("drop").hidden = true;
  searchWith(event.dataTransfer.files[0]);
});
addEventListener("popstate", show);

(async () => {
  try {
    about = await read(await fetch("/about"));
  } catch (error) {
    $("error").textContent = error.message;
    $("error").hidden = false;
    return;
  }
  $("title").querySelector("a").textContent = about.title;
  $("count").textContent = count(about.count, "photo");
  $("text").maxLength = about.letters;
  show();
})();
