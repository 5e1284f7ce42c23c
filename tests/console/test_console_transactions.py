"""The transactional ids in the console: the list, one id, and the abort of its open transaction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chromium import Browser, Page, browser
from confluent_kafka import KafkaException, Producer
from product import running_node

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
__all__ = ["browser"]  # the fixture


def wait_text(page: Page, selector: str, words: str) -> None:
    page.wait(
        f"document.querySelector({json.dumps(selector)})?.textContent.includes({json.dumps(words)})"
    )


def test_an_open_transaction_is_shown_and_aborted(browser: Browser, tmp_path: Path) -> None:
    flags = ("--cores", "1", "--kafka-listen", "127.0.0.1:0")
    with running_node(tmp_path / "data", *flags) as node:
        producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "pay/1"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("orders", b"1")
        assert producer.flush(60) == 0
        page = browser.open(f"{node.url}/console/#/kafka")
        link = "document.querySelector('a[href=\"#/transaction/pay%2F1\"]')"
        page.wait(f"!!{link}")
        row = f"{link}.closest('tr').textContent"
        assert "Ongoing" in page.run(row)
        page.run(f"{link}.click()")
        wait_text(page, ".numbers", "Ongoing")
        wait_text(page, ".tables tbody", "orders")
        button = "[...document.querySelectorAll('.acts:not(.waiting) button')].find((each) => each.textContent.startsWith('Abort'))"
        page.wait(f"!!{button}")
        page.run(f"{button}.click()")
        page.wait("document.querySelector('dialog.act-dialog')?.open")
        command = page.run("document.querySelector('.act-dialog .same code').textContent")
        assert "txn abort pay/1" in command
        page.run(
            "(() => { const field = document.querySelector('#act-typed'); field.value = 'pay/1'; "
            "field.dispatchEvent(new Event('input', { bubbles: true })); "
            "document.querySelector('.act-dialog form').requestSubmit(); })()"
        )
        wait_text(page, ".numbers", "Abort")
        with pytest.raises(KafkaException):
            producer.commit_transaction(60)
        page.call("Page.close")
