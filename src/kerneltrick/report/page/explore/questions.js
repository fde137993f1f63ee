// Questions of the chapters, and what the page keeps when it is loaded again.

const answered = new Map(); // by the name of a question, what was answered rightly
let posed = 0;

// A browser may forbid storage; then the page starts afresh each time.
const STORED = "kerneltrick explore";
function readStored() {
  try {
    return JSON.parse(localStorage.getItem(STORED)) || {};
  } catch {
    return {};
  }
}

function store(changes) {
  try {
    localStorage.setItem(STORED, JSON.stringify({ ...readStored(), ...changes }));
  } catch {
    // Nothing is lost but the next visit's start.
  }
}

// Questions of a chapter: {words, options, right, why, hint} for a choice, {words, answer, near, why, hint}
// for a number, {words, check, why, hint} for something to do in the picture. `answer` and `check` are
// computed when they are asked for.
function ask(chapter, questions) {
  const before = new Map(readStored().answers);
  questions.forEach((question, at) => {
    posed += 1;
    const id = `${chapter}-${at + 1}`;
    const told = make("p", { class: "verdict", role: "status" });
    const form = make("form", { class: "question", id: `question-${id}` });
    const head = make("legend", {}, `${at + 1}. ${question.words}`);
    const field = make("fieldset", {}, head);
    if (question.options) {
      const options = question.options.map((text, i) => make("label", { class: "option" }, make("input", { type: "radio", name: id, value: i, required: "" }), text));
      field.append(...options);
    } else if (question.answer) {
      field.append(make("input", { class: "number", name: id, inputmode: "decimal", autocomplete: "off", required: "", "aria-label": "Your answer" }), question.unit ? ` ${question.unit} ` : " ");
    }
    field.append(make("button", { class: "push" }, question.check ? "Check my picture" : "Check"));
    form.append(field, told);
    const mark = (right) => {
      form.dataset.right = right;
      told.textContent = right ? `Right. ${question.why}` : `Not yet. ${question.hint}`;
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const given = new FormData(form).get(id);
      const right = isRight(question, given);
      mark(right);
      if (right) {
        answered.set(id, given);
        store({ answers: [...answered] });
      }
      drawProgress();
    });
    if (before.has(id)) {
      answered.set(id, before.get(id));
      if (question.options) form.querySelector(`input[value="${CSS.escape(before.get(id))}"]`).checked = true;
      else if (question.answer) form.elements[id].value = before.get(id);
      mark(true);
    }
    byId(`${chapter}-questions`).append(form);
  });
}

function isRight({ options, right, answer, near = 0.005, check }, given) {
  if (check) return check();
  if (options) return Number(given) === right;
  return readings(given).some((number) => Math.abs(number - answer()) <= near * Math.max(1, Math.abs(answer())));
}

// What a number as people write it can mean: 16384, 16,384, 16 384, 2^14, 2¹⁴, 4·64·64, 16k, 16 KiB,
// n = 64, 16384 bytes. A comma or a point before three digits can be either mark; k is 1000 or 1024.
const RAISED = Object.fromEntries(Object.entries(SUPERSCRIPTS).map(([plain, raised]) => [raised, plain]));
const SIZES = { k: [1e3, 2 ** 10], m: [1e6, 2 ** 20], g: [1e9, 2 ** 30] };
function readings(given) {
  const text = String(given).toLowerCase().replaceAll("−", "-").replaceAll("**", "^").replace(/^\s*[a-z]*\s*[=≈]/, "").replace(/[.\s]+$/, "");
  const raised = text.replace(/[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+/g, (power) => `^${[...power].map((c) => RAISED[c]).join("")}`);
  const [, body = "", size] = raised.match(/^(.*\d)\s*(?:([kmg])(?=i?b?$|i?\s*bytes?$))?\s*(?:i?\s*b|i?\s*[a-z]{2,})?$/) || [];
  const factors = body.split(/[·×*x]/).map(power);
  const products = factors.reduce((all, factor) => all.flatMap((x) => factor.map((y) => x * y)), [1]);
  return products.flatMap((x) => (SIZES[size] || [1]).map((by) => x * by));
}

function power(text) {
  const [base, exponent = ["1"], ...more] = text.split("^").map(plainNumbers);
  return more.length ? [] : base.flatMap((x) => exponent.map((y) => x ** y));
}

function plainNumbers(text) {
  const tight = text.replace(/(?<=\d)[\s\u202f'_](?=\d{3}(\D|$))/g, "").trim();
  const grouped = /^[-+]?\d{1,3}([.,]\d{3})+$/.test(tight) ? [tight.replace(/[.,]/g, "")] : [];
  const found = [tight.replace(",", "."), tight.replace(/,(?=\d{3}(\D|$))/g, ""), ...grouped];
  return [...new Set(found)].filter((x) => x !== "").map(Number).filter(Number.isFinite);
}
