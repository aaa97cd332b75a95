// TensorBoard imports this into an empty frame and calls render(). The page itself is part of trainobs. Where that
// is missing or broken, the server's answer says why, and this shows it.

const PAGE = new URL('./static/tab.js', import.meta.url);

async function reason(error) {
  const answer = await fetch(PAGE);
  return answer.ok ? String(error) : (await answer.json()).error;
}

export async function render() {
  try {
    const page = await import(PAGE);
    await page.render(document.body);
  } catch (error) {
    const text = document.createElement('pre');
    text.setAttribute('role', 'alert');
    text.textContent = await reason(error).catch(() => String(error));
    document.body.replaceChildren(text);
  }
}
