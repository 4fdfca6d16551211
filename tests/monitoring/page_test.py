#!/usr/bin/env python3
"""Opens the page on the metrics port in headless Chromium, while a real server is under load.

What the script drew is read from the document; a complaint of the browser (an error of the script, a
violation of the page's own policy) fails the test. --screenshots FOLDER keeps pictures, light and
dark, for people to look at.

  page_test.py --server BINARY --client BINARY --model GGUF [--screenshots FOLDER]
"""
import argparse
import html
import http.server
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from harness import Load, Server, folder, get, skip, wait_for  # noqa: E402


class Browser:
    def __init__(self, binary, directory):
        self.binary = binary
        self.directory = directory

    def run(self, url, *options, seconds=6):
        """Standard output and complaints after `seconds` of the page's time."""
        done = subprocess.run(
            [self.binary, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-background-networking", "--no-first-run", "--disable-dev-shm-usage",
             f"--user-data-dir={self.directory}/chromium", "--enable-logging=stderr",
             f"--virtual-time-budget={seconds * 1000}", *options, url],
            capture_output=True, text=True, timeout=180)
        complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return done.stdout, complaints

    def text(self, url):
        document, complaints = self.run(url, "--dump-dom")
        assert not complaints, complaints
        body = re.sub(r"(?s)<(style|script).*?</\1>", " ", document)
        return document, " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def tokens_by_tier(server):
    metrics = (get(f"http://{server.http}/metrics") or b"").decode()
    return {tier: float(value) for tier, value in
            re.findall(r'^strata_kv_tier_tokens\{tier="(\w+)"\} (\S+)', metrics, re.M)}


def check_busy(browser, server):
    document, text = browser.text(f"http://{server.http}/")
    assert re.search(r"[\d,]+ tokens in [\d.]+ MiB instead of [\d.]+ MiB: \d+ % saved", text), text
    for part in ("hot f16, in memory", "warm i4, in memory", "cold", "on disk", "warm → cold",
                 "cold → attention", "First token", "Between tokens", "Waiting for the disk",
                 "tokens/s", "Damaged records"):
        assert part in text, f"{part!r} is not in: {text}"
    assert re.search(r"[12] running, \d waiting", text), text
    for place in ('<th scope="col"', 'scope="row"', 'role="status"', 'aria-label="traffic', 'lang="en"'):
        assert place in document, place
    # Bars have their lengths although the policy allows no style attributes in the document.
    assert re.search(r'class="used" style="width: [1-9]', document), "bars are empty"


class VanishingServer(http.server.BaseHTTPRequestHandler):
    """Hands requests on to the real server, but after three reports it is gone."""
    target = ""
    reports = 0

    def do_GET(self):
        if self.path == "/stats.json":
            VanishingServer.reports += 1
            if VanishingServer.reports > 3:
                self.connection.close()
                return
        with urllib.request.urlopen(f"http://{self.target}{self.path}") as answer:
            body = answer.read()
            self.send_response(200)
            for name in ("Content-Type", "Content-Security-Policy"):
                if answer.headers[name]:
                    self.send_header(name, answer.headers[name])
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def check_gone(browser, server):
    VanishingServer.target = server.http
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), VanishingServer) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        document = browser.run(f"http://127.0.0.1:{proxy.server_port}/", "--dump-dom", seconds=20)[0]
        proxy.shutdown()
    assert re.search(r"No answer from the server( for \d+ s)?</p>", document), document[-3000:]
    assert 'class="stale"' in document
    assert "tokens in" in document, "what was known last is still shown"


def main():
    parser = argparse.ArgumentParser()
    for name in ("server", "client", "model", "screenshots"):
        parser.add_argument("--" + name, default="")
    arguments = parser.parse_args()
    binary = shutil.which("chromium")
    if binary is None:
        skip("no chromium; tools/test_page installs Debian's package and runs this")
    with folder() as directory:
        server = Server(arguments.server, arguments.model, directory)
        browser = Browser(binary, directory)
        load = None
        try:
            text = browser.text(f"http://{server.http}/")[1]
            assert "The cache is empty" in text and "All is well" in text, text
            load = Load(arguments.client, server, clients=2, tokens=400)
            wait_for("tokens in every tier",
                     lambda: len([n for n in tokens_by_tier(server).values() if n > 0]) == 3)
            check_busy(browser, server)
            check_gone(browser, server)
            for name, options in (("light", ()), ("dark", ("--blink-settings=preferredColorScheme=0",))):
                if not arguments.screenshots:
                    continue
                browser.run(f"http://{server.http}/", "--window-size=1200,1000", *options,
                            f"--screenshot={arguments.screenshots}/page-{name}.png", seconds=30)
        finally:
            if load is not None:
                load.stop()
            server.stop()


if __name__ == "__main__":
    main()
