"""The server's page in a browser: what runs is seen while it runs, by keyboard alone, in light and dark, and nobody else is asked.

Pictures of it are in screenshots/ afterwards.
"""

import json
import subprocess
import threading
import urllib.parse
from pathlib import Path

import psycopg
import pytest
from conftest import ONEHOP
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from test_process import add_user, certificate  # noqa: F401

PICTURES = Path(__file__).parent / "screenshots"
# Longer than anything here takes.
PATIENCE = 120

# Each row of sales meets as many of offers: it goes on for as long as anybody looks.
LONG = """SELECT s.name, count(*) AS offers, sum(sales.amount) AS amount
FROM sales
JOIN shops s ON sales.shop = s.id
JOIN offers o ON o.shop = s.id AND o.price > sales.price
WHERE sales.day BETWEEN 10 AND 350
GROUP BY s.name
ORDER BY amount DESC"""


@pytest.fixture
def browser(tmp_path):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for word in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1500", "--ignore-certificate-errors"]:
        options.add_argument(word)
    options.add_argument(f"--user-data-dir={tmp_path / 'profile'}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path="/usr/bin/chromedriver")
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def until(driver, what):
    return WebDriverWait(driver, PATIENCE, poll_frequency=0.05).until(what)


def text(driver, selector):
    return driver.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)


def open_page(driver, address):
    driver.get(address)
    until(driver, lambda driver: "version" in text(driver, "#server"))


def press(driver, *keys):
    ActionChains(driver).send_keys(*keys).perform()


def tab_to(driver, selector):
    """Goes to an element as somebody does who has no mouse."""
    for _ in range(200):
        if driver.execute_script("return document.activeElement.matches(arguments[0])", selector):
            return
        press(driver, Keys.TAB)
    pytest.fail(f"{selector} cannot be reached with the keyboard")


def colours(driver, mode):
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": mode}]})
    return driver.execute_script("const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]")


def contrast(pair):
    """Of two colours, as the accessibility guidelines (WCAG 2.2, 1.4.3) reckon it."""

    def luminance(colour):
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    light, dark = sorted(map(luminance, pair), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def asked_of(driver):
    """Where the page's requests went."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return {urllib.parse.urlsplit(url).netloc for url in sent if url.startswith("http")}


class Running:
    """A statement that a client waits for."""

    def __init__(self, server, statement, **more):
        self.error = None
        self.thread = threading.Thread(target=self.run, args=(server.conninfo(**more), statement))
        self.thread.start()

    def run(self, conninfo, statement):
        with psycopg.connect(conninfo, autocommit=True) as connection:
            try:
                connection.execute(statement)
            except psycopg.Error as error:
                self.error = error

    def ended(self):
        self.thread.join()
        return self.error


@pytest.fixture
def shops(make_server, tmp_path):
    server = make_server("--http", "127.0.0.1:0", path="shops.onehop", cwd=tmp_path)
    server.psql(
        """CREATE TABLE sales AS SELECT value AS id, value % 400 AS shop, value % 365 AS day, value % 1000 AS price,
           value % 97 AS amount FROM generate_series(1, 3000000)""",
        "CREATE TABLE shops AS SELECT value AS id, 'shop ' || value AS name FROM generate_series(0, 399)",
        """CREATE TABLE offers AS SELECT value % 400 AS shop, value % 1000 AS price
           FROM generate_series(1, 2000000)""",
    )
    return server


def test_a_statement_is_looked_at_and_ended_by_keyboard(shops, browser):
    open_page(browser, shops.page)
    assert text(browser, "#running-none") == "Nothing runs."
    assert text(browser, "#database") == "shops.onehop"
    until(browser, lambda driver: "CREATE TABLE offers" in text(driver, "#recent-rows"))
    running = Running(shops, LONG)
    try:
        until(browser, lambda driver: "SELECT s.name" in text(driver, "#running-rows"))
        tab_to(browser, "#running-rows button.statement")
        press(browser, Keys.ENTER)
        until(browser, lambda driver: driver.find_elements(By.CSS_SELECTOR, "#detail-body svg rect.scan"))
        assert text(browser, "#detail-sql").startswith("SELECT s.name, count(*) AS offers")
        # The plan, with what has been moved so far: it goes on moving.
        until(browser, lambda driver: "CpuScan" in text(driver, "#detail-body") and "sales" in text(driver, "#detail-body"))
        # Two rows of figures later, so that rates are drawn.
        seen = text(browser, "#detail-state")
        until(browser, lambda driver: text(driver, "#detail-state") != seen)
        assert text(browser, "#detail-state").startswith("running, ")
        # What was folded stays so when the plan is drawn anew.
        tab_to(browser, "#detail-body .plan summary")
        press(browser, Keys.ENTER)
        seen = text(browser, "#detail-state")
        until(browser, lambda driver: text(driver, "#detail-state") != seen)
        first = "const one = document.querySelector('#detail-body .plan details');"
        assert browser.execute_script(first + "return [one.open, one.firstChild === document.activeElement]") == [False, True]
        press(browser, Keys.ENTER)
        PICTURES.mkdir(exist_ok=True)
        browser.execute_script("scrollTo(0, 0)")
        for mode in ["light", "dark"]:
            assert contrast(colours(browser, mode)) > 7
            assert browser.save_screenshot(str(PICTURES / f"page-{mode}.png"))
        assert colours(browser, "light") != colours(browser, "dark")
        # Narrow, nothing but tables is wider than the window.
        browser.set_window_size(500, 900)
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        browser.save_screenshot(str(PICTURES / "page-narrow.png"))
        browser.set_window_size(1280, 1500)
        press(browser, Keys.ESCAPE)
        assert not browser.find_element(By.ID, "detail").is_displayed()
        # One is where one was.
        assert browser.execute_script("return document.activeElement.matches('#running-rows button.statement')")
        press(browser, Keys.TAB)
        assert browser.execute_script("return document.activeElement.getAttribute('aria-label')").startswith("Cancel statement")
        press(browser, Keys.ENTER)
    finally:
        if running.thread.is_alive() and not text(browser, "#said"):
            shops.process.terminate()
    assert isinstance(running.ended(), psycopg.errors.QueryCanceled)
    until(browser, lambda driver: text(driver, "#running-none") == "Nothing runs.")
    # The statement may have ended before the page has heard that it was told to.
    until(browser, lambda driver: "is told to end" in text(driver, "#said"))
    until(browser, lambda driver: "cancelled" in text(driver, "#recent-rows tr"))
    # Its plan is there afterwards.
    browser.find_element(By.CSS_SELECTOR, "#recent-rows button.statement").click()
    until(browser, lambda driver: "CpuScan" in text(driver, "#detail-body"))
    assert text(browser, "#detail-state").startswith("cancelled")
    # An address of its own leads there again.
    browser.refresh()
    until(browser, lambda driver: "CpuScan" in text(driver, "#detail-body"))
    assert asked_of(browser) == {urllib.parse.urlsplit(shops.page).netloc}
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []


def test_nothing_that_is_said_becomes_markup(shops, browser):
    hostile = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"
    name = "&lt;i&gt; <i>\"' --"
    program = "<u>psql</u>"
    with psycopg.connect(shops.conninfo(application_name=program), autocommit=True) as connection:
        connection.execute(f"""SELECT count(*) AS "{name.replace('"', '""')}" FROM sales WHERE id = 1 -- {hostile}""")
        with pytest.raises(psycopg.Error):
            connection.execute(f"""SELECT "{hostile}" FROM sales""")
        open_page(browser, shops.page)
        until(browser, lambda driver: "failed" in text(driver, "#recent-rows"))
        assert hostile in text(browser, "#recent-rows") and program in text(browser, "#activity-rows")
        for button in browser.find_elements(By.CSS_SELECTOR, "#recent-rows button.statement")[:2]:
            button.click()
            until(browser, lambda driver, said=button.text.split(" ")[0]: said in text(driver, "#detail-title"))
            until(browser, lambda driver: hostile in text(driver, "#detail-sql"))
            until(browser, lambda driver: text(driver, "#detail-body"))
        found = browser.execute_script("return document.querySelectorAll('main img, main script, main u, main i:not([class]):not([style])').length")
        assert (found, browser.title) == (0, "Onehop")


def test_who_is_gone_is_said_to_be(make_server, browser):
    server = make_server("--http", "127.0.0.1:0")
    open_page(browser, server.page)
    assert not browser.find_element(By.ID, "problem").is_displayed()
    server.stop()
    until(browser, lambda driver: "not current" in text(driver, "#problem"))


def test_a_user_logs_in_over_tls(make_server, browser, certificate, tmp_path):  # noqa: F811
    cert, key = certificate
    users = tmp_path / "users"
    add_user(users, "ada", "x", "admin")
    add_user(users, "bob", "y", "read")
    server = make_server("--http", "127.0.0.1:0", "--users", users, "--tls-cert", cert, "--tls-key", key)
    assert server.page.startswith("https://")
    open_page(browser, server.page.replace("https://", "https://bob:y@"))
    assert "you are bob (read)" in text(browser, "#server")
    running = Running(server, "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b", password="x")
    try:
        until(browser, lambda driver: "SELECT count" in text(driver, "#running-rows"))
        # It is somebody else's.
        assert not browser.find_element(By.CSS_SELECTOR, "#running-rows button.cancel").is_displayed()
    finally:
        server.psql("SELECT 1", env={"PGPASSWORD": "x"})
        server.stop()
    running.ended()


def test_the_address_is_checked(tmp_path):
    command = [ONEHOP, "serve", ":memory:", "--listen", "127.0.0.1:0", "--http", "0.0.0.0:0"]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode != 0 and "needs both users who log in and TLS" in done.stderr, done.stderr
