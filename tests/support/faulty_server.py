#!/usr/bin/env python3
"""An HTTP server for tests: serves a folder's files with faults, and checks signatures of S3 requests.

    faulty_server.py FOLDER      prints its port and process; ends with the process that started it

For /FILE?seed=N the first one to three answers to this address are wrong in one way, chosen by N (FAULTS). With N
from 1000 on, all answers are wrong. The answer to /fail/FILE is always 503. /bucket/FILE requires a request signed
with the keys below. Every answer adds a line "STATUS PATH" to FOLDER/requests.log.
"""
import base64
import collections
import hashlib
import hmac
import http.server
import os
import pathlib
import random
import sys
import threading
import time
import urllib.parse

KEY, SECRET, TOKEN = "test-key", "test-secret", "test-token"
FAULTS = ["503", "429", "stall", "cut", "cut early", "cut late", "short", "long", "no length", "changed", "checksum", "byte", "range", "empty"]
STALL = 3  # seconds; more than the client waits
asked = collections.Counter()
lock = threading.Lock()


def hmac_sha256(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def signature(handler):
    """Returns the request's signature by AWS's rules (SigV4)."""
    words = dict(word.strip().split("=", 1) for word in handler.headers["Authorization"].split(" ", 1)[1].split(","))
    key, date, region, service, end = words["Credential"].split("/")
    path, _, query = handler.path.partition("?")
    names = words["SignedHeaders"].split(";")
    headers = "".join(f"{name}:{' '.join(handler.headers[name].split())}\n" for name in names)
    payload = handler.headers["x-amz-content-sha256"]
    canonical = "\n".join([handler.command, path, query, headers, ";".join(names), payload])
    scope = "/".join([date, region, service, end])
    text = "\n".join(["AWS4-HMAC-SHA256", handler.headers["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest()])
    secret = ("AWS4" + SECRET).encode()
    for part in (date, region, service, end):
        secret = hmac_sha256(secret, part)
    needed = {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names)
    good = key == KEY and needed and handler.headers["x-amz-security-token"] == TOKEN
    return hmac_sha256(secret, text).hex() if good else None, words["Signature"]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def note(self, status):
        with lock, open(FOLDER / "requests.log", "a") as log:
            log.write(f"{status} {self.path}\n")

    def refuse(self, status):
        self.note(status)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        path, _, query = self.path.partition("?")
        name = urllib.parse.unquote(path.lstrip("/"))
        if name.startswith("fail/"):
            return self.refuse(503)
        if name.startswith("bucket/"):
            name = name[len("bucket/"):]
            if "Authorization" not in self.headers:
                return self.refuse(403)
            wanted, found = signature(self)
            if wanted != found:
                return self.refuse(403)
        file = FOLDER / name
        if ".." in name or not file.is_file():
            return self.refuse(404)
        body = file.read_bytes()
        seed = int(dict(urllib.parse.parse_qsl(query)).get("seed", -1))
        chooser = random.Random(seed)
        fault, wrong = chooser.choice(FAULTS), chooser.randint(1, 3)
        if fault == "stall":  # each costs the client a second
            fault, wrong = chooser.choice(["stall", "cut", "cut late"]), 1
        with lock:
            asked[self.path] += 1
            turn = asked[self.path]
        faulty = seed >= 0 and (turn <= wrong or seed >= 1000)
        self.note(200)  # first: a test counts as soon as it has the answer
        self.answer(body, seed, fault if faulty else "", chooser)

    def answer(self, body, seed, fault, chooser):
        if fault == "changed":
            body = body[::-1]
        etag = '"' + hashlib.sha256(body).hexdigest()[:16] + '"'
        total, status, begin = len(body), 200, 0
        asks = self.headers.get("Range", "")
        same = self.headers.get("If-Range", etag) == etag
        if asks.startswith("bytes=") and same:
            begin = int(asks[6:].split("-")[0])
            if begin >= total:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{total}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            status = 206
        if self.headers.get("If-None-Match") == etag:
            self.send_response(304)
            return self.end_headers()
        if fault in ("503", "429"):
            return self.refuse(int(fault))
        rest, length = body[begin:], total - begin
        if fault == "empty":  # closes the connection without an answer
            self.close_connection = True
            return
        if fault == "short":
            length -= min(length - 1, 1 + chooser.randrange(64))
            rest = rest[:length]
        if fault == "long":
            length += 1 + chooser.randrange(64)
        self.send_response(status)
        if fault != "no length":
            self.send_header("Content-Length", str(length))
        if seed % 4 in (-1, 0, 1, 3):
            self.send_header("ETag", etag)
        if seed % 4 in (0, 2) or fault in ("byte", "checksum"):
            told = body if fault != "checksum" else b"other"
            self.send_header("Repr-Digest", f"sha-256=:{base64.b64encode(hashlib.sha256(told).digest()).decode()}:")
        if status == 206:
            moved = min(begin, 7) if fault == "range" else 0
            self.send_header("Content-Range", f"bytes {begin - moved}-{total - 1}/{total}")
        if fault == "no length":
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if fault == "byte":
            at = chooser.randrange(len(rest))
            rest = rest[:at] + bytes([rest[at] ^ 1]) + rest[at + 1:]
        parts = {"cut": 0.5, "cut early": 0.02, "cut late": 0.98, "stall": 0.5, "range": 0.5}
        self.wfile.write(rest[:int(len(rest) * parts.get(fault, 1))])
        if fault == "stall":
            self.wfile.flush()
            time.sleep(STALL)
        if fault in parts or fault == "long":
            self.close_connection = True


def follow_parent(parent):
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(0)


if __name__ == "__main__":
    FOLDER = pathlib.Path(sys.argv[1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=follow_parent, args=(os.getppid(),), daemon=True).start()
    print(server.server_address[1], os.getpid(), flush=True)
    server.serve_forever()
