// The search page. The address holds the query: ?q=TEXT or ?like=NAME or ?photo=NUMBER.
// Answers come as JSON; every text is set as text, never as HTML.

const $ = (id) => document.getElementById(id);
const BATCH = 50, MOST = 200;         // answers to a request; most of them after a step back
const photos = new Map();             // photos dropped since the page was opened, by the time of their arrival
let about = null;                     // what is searched
let answers = [];                     // what is shown
let latest = 0;                       // number of the latest query: answers to an older one are not shown
let current = null;                   // position of the photo in the viewer
let gallery = 0;                      // photos that are searched

const format = (n) => n.toLocaleString("en");
const fileOf = (name) => name.slice(name.lastIndexOf("/") + 1);
const addressOf = (size, name) => `/${size}?${new URLSearchParams({name})}`;
const addressOfLike = (name) => `/?${new URLSearchParams({like: name})}`;

// What the address asks: {q}, {like} or {photo} as texts, or null.
function question() {
  const fields = new URLSearchParams(location.search);
  for (const name of ["q", "like", "photo"]) {
    const value = fields.get(name);
    if (value?.trim()) return {[name]: name === "q" ? value.trim() : value};  // names may begin with a space
  }
  return null;
}

function go(fields) {
  const at = $("viewer").open ? current : places().indexOf(document.activeElement.closest("#answers li"));
  history.replaceState({shown: answers.length, y: scrollY, at}, "");
  history.pushState(null, "", Object.keys(fields).length ? `/?${new URLSearchParams(fields)}` : "/");
  scrollTo(0, 0);
  return show();
}

// ---- asking

// The JSON of a response. Throws an Error whose message is one sentence.
async function read(response) {
  let body = null;
  try {
    body = await response.json();
  } catch {
    throw new Error(`the server answered with status ${response.status} and gave no reason`);
  }
  if (!response.ok) throw new Error(body.error);
  return body;
}

async function ask({photo, ...fields}, offset, top) {
  const address = `/search?${new URLSearchParams({...fields, offset, top})}`;
  if (photo === undefined) return read(await fetch(address));
  const file = photos.get(photo);
  if (!file) throw new Error("this page no longer has the photo of this search; drop it here again");
  if (file.size > about.bytes)
    throw new Error(`${file.name} has ${format(Math.ceil(file.size / 1e6))} MB, and the page takes up to ` +
                    `${format(about.bytes / 1e6)}; make a smaller copy of it`);
  return read(await fetch(address, {method: "POST", body: file}));
}

// Show the answers to what the address asks; of `shown` photos, at least so many.
async function show(shown = 0) {
  const fields = question(), mine = ++latest;
  current = null;
  $("viewer").close();
  $("text").value = fields?.q ?? "";
  document.title = fields?.q ? `${fields.q} - ${about.title}` : about.title;
  $("start").hidden = fields !== null;
  fail(null);
  if (!fields) clear();
  else await load(fields, mine, 0, Math.min(MOST, Math.max(BATCH, shown)));
}

// Load answers from the position `offset` and append them; the first ones replace what is shown.
async function load(fields, mine, offset, top) {
  $("result").setAttribute("aria-busy", "true");
  $("more").disabled = true;
  try {
    const result = await ask(fields, offset, top);
    if (mine !== latest) return;
    if (offset === 0) drawResult(fields, result);
    for (const answer of result.answers) {
      if (answers.length && answers.length === result.number) drawLine();
      $("answers").append(card(answer, answers.length));
      answers.push(answer);
    }
    $("more").hidden = !result.answers.length || answers.length >= result.gallery;
    $("more").disabled = false;
    reach.disconnect();                                   // observe the button anew, also if it stayed in sight
    reach.observe($("more"));
    if ($("viewer").open) view(current);                  // its next photo may be among them
  } catch (error) {
    if (mine !== latest) return;
    if (offset === 0) clear();
    $("more").hidden = true;
    fail(error instanceof TypeError ? "the server does not answer; it may have been stopped" : error.message);
  } finally {
    if (mine === latest) $("result").setAttribute("aria-busy", "false");
  }
}

function more() {
  if (!$("more").hidden && !$("more").disabled) load(question(), latest, answers.length, BATCH);
}

function fail(sentence) {
  $("error").hidden = sentence === null;
  $("error").textContent = sentence ?? "";
}

// ---- drawing

function clear() {
  answers = [];
  $("answers").replaceChildren();
  $("notes").replaceChildren();
  for (const id of ["fit", "query", "more", "about"]) $(id).hidden = true;
  $("fit").textContent = $("facts").textContent = "";
}

function drawResult(fields, result) {
  clear();
  $("query").hidden = fields.q !== undefined;             // a text is in the search box
  const [image, name] = $("query").children, file = photos.get(fields.photo);
  image.hidden = false;
  image.src = file ? file.url ??= URL.createObjectURL(file) : fields.like ? addressOf("thumb", fields.like) : "";
  name.textContent = `Photos similar to ${fileOf(file ? file.name : result.query)}`;
  name.title = result.query;
  drawCount(result.gallery);
  const [fit, ...facts] = result.said.split("; ");
  $("fit").textContent = fit;
  $("fit").hidden = !fit;
  $("facts").textContent = facts.join("; ");
  $("about").hidden = about.notes.length === 0 || !result.said && about.calibrated;           // the notes are about numbers
  $("notes").append(...result.notes.map((note) => {
    const item = document.createElement("li");
    item.textContent = note;
    return item;
  }));
}

function drawCount(count) {
  gallery = count;
  $("count").textContent = `${format(count)} photo${count === 1 ? "" : "s"}`;
}

// The line after as many photos as are said to fit.
function drawLine() {
  const line = document.createElement("li");
  line.className = "line";
  line.textContent = "probably no matches from here on";
  $("answers").append(line);
}

function card(answer, place) {
  const item = $("card").content.firstElementChild.cloneNode(true), photo = item.querySelector(".photo");
  const image = item.querySelector("img"), like = item.querySelector(".like"), name = item.querySelector(".name");
  const lose = (why) => {
    answer.gone = true;
    photo.textContent = why;
    photo.disabled = true;
    like.remove();
  };
  image.alt = answer.name;
  image.onerror = () => lose("cannot be shown");
  if (answer.gone) lose("gone");
  else image.src = addressOf("thumb", answer.name);
  photo.onclick = () => view(place);
  like.href = addressOfLike(answer.name);
  name.textContent = fileOf(answer.name);
  name.title = answer.name;
  return item;
}

const places = () => [...$("answers").querySelectorAll("li:not(.line)")];
const photoAt = (place) => places()[place]?.querySelector(".photo");

// ---- one photo, large

function view(place) {
  const answer = answers[place];
  current = place;
  $("name").textContent = fileOf(answer.name);
  $("place").textContent = `${place + 1} of ${format(gallery)}`;
  $("path").textContent = answer.path;
  $("copy").textContent = "Copy the path";
  $("like").href = addressOfLike(answer.name);
  $("previous").disabled = neighbour(-1) === null;
  $("next").disabled = neighbour(1) === null;
  const address = addressOf("photo", answer.name);
  if ($("large").getAttribute("src") !== address) {
    $("large").removeAttribute("src");                    // else the previous photo stays until this one is loaded
    $("large").src = address;
  }
  $("large").alt = answer.name;
  if (!$("viewer").open) $("viewer").showModal();
  if (neighbour(1) !== null) new Image().src = addressOf("photo", answers[neighbour(1)].name);   // load it in advance
  if (place > answers.length - 5) more();
}

// The position of the next (1) or previous (-1) photo that is not gone, or null.
function neighbour(by) {
  let place = current + by;
  while (answers[place]?.gone) place += by;
  return answers[place] ? place : null;
}

function step(by) {
  if (neighbour(by) !== null) view(neighbour(by));
}

async function copyPath() {
  try {
    await navigator.clipboard.writeText(answers[current].path);
    $("copy").textContent = "Copied";
  } catch {                                               // a page served over plain http may not
    getSelection().selectAllChildren($("path"));
    $("copy").textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl-C";
  }
}

$("copy").addEventListener("click", copyPath);
$("close").addEventListener("click", () => $("viewer").close());
$("previous").addEventListener("click", () => step(-1));
$("next").addEventListener("click", () => step(1));
$("viewer").addEventListener("close", () => photoAt(current)?.focus());
$("viewer").addEventListener("keydown", (event) => {
  const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  if (by) step(by);
});

// ---- what the user does

function searchWith(file) {
  if (!file) return;
  const key = String(Date.now());
  photos.set(key, file);
  go({photo: key});
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const q = $("text").value.trim();
  go(q ? {q} : {});
});
$("file").addEventListener("change", () => {
  searchWith($("file").files[0]);
  $("file").value = "";                                   // the same photo can be chosen again
});
document.addEventListener("click", async (event) => {     // links within the page, unless they open elsewhere
  const anchor = event.target.closest("a[href]");
  if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  await go(Object.fromEntries(new URL(anchor.href).searchParams));
  if (question()) photoAt(0)?.focus();
  else $("text").focus();
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
const reach = new IntersectionObserver((seen) => seen.some((entry) => entry.isIntersecting) && more(),
                                       {rootMargin: "800px"});
$("query").querySelector("img").addEventListener("error", (event) => event.target.hidden = true);
addEventListener("popstate", async (event) => {
  await show(event.state?.shown);
  photoAt(event.state?.at)?.focus();
  scrollTo(0, event.state?.y ?? 0);
});
history.scrollRestoration = "manual";

try {
  about = await read(await fetch("/about"));
  $("title").querySelector("a").textContent = about.title;
  drawCount(about.count);
  $("text").maxLength = about.letters;
  $("about").querySelector("p").textContent = about.notes.join("; ");
  await show();
} catch (error) {
  fail(error.message);
}
