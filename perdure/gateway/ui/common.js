// What all parts of the page share: Preact, the ticking clock, dialogs, and a button that says why it is disabled.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-standalone.module.js";

export { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/htm-preact-standalone.module.js";

/** The time of now, each second while the page is seen. */
export function useNow(ticking = true) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!ticking) return undefined;
    const timer = setInterval(() => document.hidden || setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [ticking]);
  return now;
}

/** A code of a failure, linked to its cause and what to do. */
export function Code({ code }) {
  return code ? html`<a class="code" href=${`/ui/errors#${code}`}>${code}</a>` : null;
}

/** A button; one with `why` is disabled, keeps its place in the order of tabs, and says why. */
export function Button({ why, onClick, children, kind = "", ...rest }) {
  const press = (event) => {
    if (why) event.preventDefault();
    else onClick?.(event);
  };
  return html`<button type="button" class=${`button ${kind}`} aria-disabled=${why ? "true" : undefined} title=${why || undefined}
    onClick=${press} ...${rest}>${children}${why ? html`<span class="hidden"> (disabled: ${why})</span>` : null}</button>`;
}

/**
 * A form in a dialog. `fields` are [{name, label, type?, value?, hint?, required?}]; `submit` gets their values and may
 * throw, and the dialog then shows what was thrown and stays.
 */
export function Ask({ title, text, fields = [], action, kind = "primary", submit, close }) {
  const dialog = useRef(null);
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    dialog.current.showModal();
  }, []);
  const send = async (event) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setWrong("");
    const form = new FormData(event.target);
    const values = Object.fromEntries(fields.map(({ name, type }) => [name, type === "checkbox" ? form.has(name) : form.get(name)]));
    try {
      await submit(values);
      close();
    } catch (error) {
      setWrong(error.message);
      setBusy(false);
    }
  };
  return html`<dialog ref=${dialog} class="ask" onClose=${close} aria-labelledby="ask-title">
    <form onSubmit=${send}>
      <h2 id="ask-title">${title}</h2>
      ${text ? html`<p>${text}</p>` : null}
      ${fields.map((field) => html`<${Field} ...${field} />`)}
      <p class="wrong" role="alert">${wrong}</p>
      <div class="row end">
        <button type="button" class="button" onClick=${close}>Close</button>
        <button type="submit" class=${`button ${kind}`} aria-disabled=${busy ? "true" : undefined}>${action}</button>
      </div>
    </form>
  </dialog>`;
}

function Field({ name, label, type = "text", value, hint, required, options, min, step }) {
  const id = `field-${name}`;
  if (type === "checkbox") return html`<label class="check"><input type="checkbox" name=${name} defaultChecked=${value} /> ${label}</label>`;
  const common = { id, name, required, "aria-describedby": hint ? `${id}-hint` : undefined };
  const input = options
    ? html`<select ...${common}>${options.map(([key, text]) => html`<option value=${key}>${text}</option>`)}</select>`
    : type === "textarea"
      ? html`<textarea rows="3" ...${common} defaultValue=${value}></textarea>`
      : html`<input type=${type} min=${min} step=${step} ...${common} defaultValue=${value} autocomplete="off" />`;
  return html`<div class="field"><label for=${id}>${label}</label>${input}${hint ? html`<small id=${`${id}-hint`}>${hint}</small>` : null}</div>`;
}

/** A button that copies a text. */
export function Copy({ text, children }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<button type="button" class="button small" onClick=${copy}>${done ? "Copied" : children}</button>`;
}
