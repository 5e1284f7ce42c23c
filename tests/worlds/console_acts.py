"""The acts of the console, as a person performs them on its page."""

from __future__ import annotations

import json
from typing import Any

from chromium import Page


def use_token(page: Page, token: str) -> None:
    """Give the tab another token, and load it again."""
    page.run(f"sessionStorage.setItem('polynya.token', {json.dumps(token)}); window.old = true")
    page.call("Page.reload")
    page.wait("!window.old && document.querySelector('#title') !== null")


def go(page: Page, address: str) -> None:
    page.run(f"location.hash = {json.dumps(f'#/{address}')}")


def wait_text(page: Page, selector: str, words: str) -> None:
    page.wait(
        f"document.querySelector({json.dumps(selector)})?.textContent.includes({json.dumps(words)})"
    )


def open_act(page: Page, word: str) -> None:
    """Press the button of an act that begins with this word, once it is shown."""
    button = (
        "[...document.querySelectorAll('.acts:not(.waiting) button')]"
        f".find((each) => each.textContent.startsWith({json.dumps(word)}))"
    )
    page.wait(f"{button} !== undefined")
    page.run(f"{button}.click()")
    page.wait("document.querySelector('dialog.act-dialog')?.open")


def fill(page: Page, **values: Any) -> None:
    """Fill fields of the dialog, by their names."""
    for name, value in values.items():
        page.run(
            f"(() => {{ const field = document.querySelector('#act-{name}'); "
            f"if (field.type === 'checkbox') field.checked = {json.dumps(value)}; "
            f"else field.value = {json.dumps(value)}; "
            "field.dispatchEvent(new Event('input', { bubbles: true })); })()"
        )


def perform(page: Page) -> None:
    """Press the button of the dialog."""
    page.run("document.querySelector('.act-dialog form').requestSubmit()")


def act(page: Page, word: str, **values: Any) -> str:
    """Perform an act until its dialog is closed; return the command that it showed."""
    open_act(page, word)
    fill(page, **values)
    command: str = page.run("document.querySelector('.act-dialog .same code').textContent")
    perform(page)
    page.wait("document.querySelector('.act-dialog') === null")
    return command
