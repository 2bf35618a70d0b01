"""From the start of a process to its first token: `atlas serve embedded`, cold, one streamed completion."""

import http.client
import json
import os
import statistics
import subprocess
import tempfile
import time

# A run that takes longer has failed.
TIMEOUT = 60


def measure(atlas, device, runs):
    seconds = [once(atlas, device) for _ in range(runs)]
    return {"median_s": statistics.median(seconds), "runs_s": seconds}


def once(atlas, device):
    """Seconds. Nothing may be compiled: the cache of compiled kernels starts empty and must stay so."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        command = [atlas, "serve", "embedded", "--device", device, "--port", "0", "--json"]
        begin = time.monotonic()
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        try:
            line = server.stdout.readline()
            if not line:
                raise ValueError(f"atlas serve ended: {server.stderr.read().strip()[-500:]}")
            event = json.loads(line)
            seconds = stream(event["host"], event["port"], event["model"], begin)
        finally:
            server.terminate()
            server.wait(TIMEOUT)
        compiled = [name for _, _, names in os.walk(cache) for name in names if name.endswith(".cubin")]
        if compiled:
            raise ValueError(f"kernels were compiled at run time: {compiled}")
    return seconds


def stream(host, port, model, begin):
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    body = {"model": model, "prompt": "The", "max_tokens": 4, "temperature": 0, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise ValueError(f"HTTP {response.status}: {response.read(500)!r}")
    for line in response:
        # The first chunk with text or, should its bytes not make a character yet, with a choice at all.
        if line.startswith(b"data: {") and json.loads(line[6:]).get("choices"):
            return time.monotonic() - begin
    raise ValueError("the stream ended without a token")
