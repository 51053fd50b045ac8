"use strict";
// The pictures of a view as one image: its sentences, plots and legends, one below the other.

const EDGE = 16; // around everything
const LINE = 20; // height of a line of text

/** A canvas with what is shown in `host`, below `title`. */
function imageOf(host, title) {
  const parts = [...host.querySelectorAll(".sentence, .head, canvas.plot, .legend, .toolbar")].filter((part) => part.getClientRects().length);
  const plots = parts.flatMap(({ plot }) => plot ?? []);
  for (const plot of plots) plot.sharpen();
  const width = Math.max(...plots.map((plot) => plot.width));
  const canvas = make("canvas");
  const context = canvas.getContext("2d");
  const draw = () => {
    let y = EDGE;
    const write = (texts, font) => {
      context.font = font;
      y = flow(context, texts, width, y);
    };
    write([[null, title]], `12px ${theme.font}`);
    for (const part of parts) {
      if (part.plot) {
        const { plot } = part;
        context.drawImage(part, EDGE, y, plot.width, plot.height);
        y += plot.height + EDGE / 2;
      } else if (part.matches(".legend, .toolbar")) write(entriesOf(part), `12px ${theme.font}`);
      else write([[null, part.textContent]], `${part.matches(".sentence") ? "600 18px" : "13px"} ${theme.font}`);
    }
    return y + EDGE / 2;
  };
  const tall = draw(); // once to know how tall it is
  const { ratio } = plots[0];
  Object.assign(canvas, { width: Math.round((width + 2 * EDGE) * ratio), height: Math.round(tall * ratio) });
  context.scale(ratio, ratio);
  context.fillStyle = theme.page;
  context.fillRect(0, 0, canvas.width, canvas.height);
  draw();
  for (const plot of plots) plot.resize();
  return canvas;
}

/** `[color, text]` of each entry of a legend. */
function entriesOf(legend) {
  return [...legend.children].filter((each) => each.matches(".entry") || legend.matches(".legend")).map((each) => {
    const swatch = each.querySelector(".swatch");
    return [swatch && getComputedStyle(swatch).backgroundColor, [...each.childNodes].map(({ textContent }) => textContent).join(" ").trim()];
  });
}

/** Writes texts, each with its color before it, one after the other, and returns where they end. */
function flow(context, texts, width, y) {
  if (!texts.length) return y;
  let x = EDGE;
  context.textBaseline = "middle";
  for (const [color, text] of texts) {
    const words = color || texts.length > 1 ? [text] : text.split(" ").map((word) => `${word} `);
    const wide = color ? LINE : 0;
    words.forEach((word) => {
      const length = context.measureText(word).width;
      if (x > EDGE && x + wide + length > EDGE + width) [x, y] = [EDGE, y + LINE * 1.2];
      if (color) {
        context.fillStyle = color;
        context.fillRect(x, y + LINE / 2 - 5, 10, 10);
        x += 15;
      }
      context.fillStyle = theme.ink;
      context.fillText(word, x, y + LINE / 2);
      x += length;
    });
    x += EDGE;
  }
  return y + LINE * 1.4;
}

/** What became of it, in a word. */
async function copyImage(canvas, name) {
  const blob = await new Promise((done) => canvas.toBlob(done));
  try {
    await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
    return "Copied";
  } catch {
    const url = URL.createObjectURL(blob);
    make("a", { href: url, download: `${name.replace(/[^\w.-]+/g, "-")}.png` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
    return "Saved";
  }
}
