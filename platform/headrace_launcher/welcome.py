"""What a person reads when everything runs: where to go, and calls that work when they are pasted."""

import sys

from headrace_launcher.management import DemoData

_TEXT = """
  Headrace is ready ({seconds:.0f} s). Ctrl-C ends it.

    Chat    {base_url}/        {user.email}   {user.password}
    Admin   {base_url}/admin/  {admin.email}   {admin.password}
    Key     {api_key}
    Model   {model}{note}
    All of this, for programs: {up_json}

  curl
    curl -N {base_url}/v1/chat/completions \\
      -H "Authorization: Bearer {api_key}" -H "Content-Type: application/json" \\
      -d '{{"model": "{model}", "stream": true, "temperature": 0.2,
           "messages": [{{"role": "user", "content": "Why are rivers useful?"}}]}}'

  Python, with the openai package
    {python} - <<'PY'
    from openai import OpenAI
    client = OpenAI(base_url="{base_url}/v1", api_key="{api_key}")
    messages = [{{"role": "user", "content": "Why are rivers useful?"}}]
    stream = client.chat.completions.create(model="{model}", messages=messages, temperature=0.2, stream=True)
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    PY

  WebSocket, subprotocol headrace.v1
    {python} - <<'PY'
    import json
    from websockets.sync.client import connect
    headers = {{"Authorization": "Bearer {api_key}"}}
    with connect("{ws_url}", subprotocols=["headrace.v1"], additional_headers=headers) as socket:
        messages = [{{"role": "user", "content": "Why are rivers useful?"}}]
        generate = {{"type": "generate", "model": "{model}", "messages": messages, "temperature": 0.2}}
        socket.send(json.dumps(generate))
        for text in socket:
            frame = json.loads(text)
            print(frame.get("text", ""), end="", flush=True)
            if frame["type"] == "delta":  # without these the engine stops after a window of tokens
                socket.send(json.dumps({{"type": "ack", "stream_id": frame["stream_id"], "seq": frame["seq"]}}))
            if frame["type"] in ("end", "error"):
                print(frame)
                break
    PY
"""

_PYTHON_INDENT = "    "


def welcome(demo: DemoData, *, base_url: str, ws_url: str, up_json: str, simulated: bool, seconds: float) -> str:
    """Returns the text; `seconds` is how long the start took."""
    text = _TEXT.format(
        admin=demo.admin,
        user=demo.user,
        api_key=demo.api_key,
        model=demo.model,
        note=" (simulated engine: made-up text)" if simulated else "",
        base_url=base_url,
        ws_url=ws_url,
        up_json=up_json,
        python=sys.executable,
        seconds=seconds,
    )
    return _outdented_heredocs(text)


def _outdented_heredocs(text: str) -> str:
    """Moves here-documents to the margin: Python and the shell's end mark mind the indentation."""
    lines, inside = [], False
    for line in text.splitlines():
        starts = line.rstrip().endswith("<<'PY'")
        lines.append(line.removeprefix(_PYTHON_INDENT) if inside or starts else line)
        inside = starts or (inside and line.strip() != "PY")
    return "\n".join(lines) + "\n"
