"""Drives a running server with the official `openai` package.

    python openai_client.py http://127.0.0.1:8888/v1 [--model NAME] [--key KEY]

Every check is a function `check_*`; all of them run, and the exit status is 1 if any failed. The checks hold for any
model that can chat and call tools; they look at shapes and at relations between answers, hardly at wording.
"""

import argparse
import concurrent.futures
import json
import sys
import traceback

import openai

HELLO = [{"role": "user", "content": "What is the capital of France?"}]
CLOCK = {
    "type": "function",
    "function": {
        "name": "world_clock",
        "description": "Get the current time in a city",
        "parameters": {
            "type": "object",
            "properties": {"timezone_city": {"type": "string", "description": "City name"}},
            "required": ["timezone_city"],
        },
    },
}
ASK_CLOCK = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "Quick: what does the clock say in Paris?"},
]


def check_models(client, model):
    listed = client.models.list().data
    assert model in [card.id for card in listed], listed
    card = client.models.retrieve(model)
    assert card.id == model and card.object == "model" and card.created > 0, card
    assert card.max_model_len > 0, card


def check_chat(client, model):
    answer = client.chat.completions.create(model=model, messages=HELLO, temperature=0, max_tokens=32)
    assert answer.object == "chat.completion" and answer.id and answer.created and answer.model == model, answer
    [choice] = answer.choices
    assert choice.index == 0 and choice.finish_reason in ("stop", "length"), choice
    assert choice.message.role == "assistant" and choice.message.content.strip(), choice
    assert choice.message.tool_calls is None, choice
    usage = answer.usage
    assert usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 32, usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    assert 0 <= usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens, usage


def check_chat_stream_equals_whole(client, model):
    fields = dict(model=model, messages=HELLO, temperature=0, max_tokens=24)
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert all(chunk.object == "chat.completion.chunk" and chunk.id == chunks[0].id for chunk in chunks), chunks
    *parts, last = chunks
    assert last.choices == [] and last.usage.completion_tokens == whole.usage.completion_tokens, last
    assert all(chunk.usage is None for chunk in parts), parts
    assert parts[0].choices[0].delta.role == "assistant", parts[0]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in parts)
    assert text == whole.choices[0].message.content, (text, whole)
    reasons = [chunk.choices[0].finish_reason for chunk in parts]
    assert reasons[-1] == whole.choices[0].finish_reason and set(reasons[:-1]) <= {None}, reasons


def check_seed_and_choices(client, model):
    fields = dict(model=model, messages=HELLO, temperature=1.0, max_tokens=16, seed=5)
    first, second = (client.chat.completions.create(**fields, n=3) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert texts == [choice.message.content for choice in second.choices], "the same seed gives the same answers"
    alone = client.chat.completions.create(**fields)
    assert alone.choices[0].message.content == texts[0], "a choice does not depend on the others"


def check_stop_and_length(client, model):
    fields = dict(model=model, messages=HELLO, temperature=0)
    whole = client.chat.completions.create(**fields, max_tokens=32).choices[0].message.content
    stop = whole.split()[-1]
    cut = client.chat.completions.create(**fields, max_tokens=32, stop=[stop]).choices[0]
    assert cut.finish_reason == "stop" and cut.message.content == whole[: whole.index(stop)], (whole, cut)
    short = client.chat.completions.create(**fields, max_tokens=1)
    assert short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 1, short


def check_logprobs(client, model):
    fields = dict(model=model, messages=HELLO, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3)
    choice = client.chat.completions.create(**fields).choices[0]
    entries = choice.logprobs.content
    assert entries and all(len(entry.top_logprobs) == 3 for entry in entries), entries
    for entry in entries:
        ranks = [top.logprob for top in entry.top_logprobs]
        assert ranks == sorted(ranks, reverse=True) and entry.logprob <= 0, entry
        assert entry.token == entry.top_logprobs[0].token, "greedy takes the likeliest token"
    said = b"".join(bytes(entry.bytes) for entry in entries).decode(errors="replace")
    assert said.strip() == choice.message.content.strip(), (said, choice)


def check_tools(client, model):
    fields = dict(model=model, messages=ASK_CLOCK, tools=[CLOCK], temperature=0, max_tokens=96)
    choice = client.chat.completions.create(**fields).choices[0]
    assert choice.finish_reason == "tool_calls", choice
    call = choice.message.tool_calls[0]
    assert call.type == "function" and call.id and call.function.name == "world_clock", call
    arguments = json.loads(call.function.arguments)
    assert isinstance(arguments, dict) and isinstance(arguments["timezone_city"], str), arguments

    streamed = {}
    finish = None
    for chunk in client.chat.completions.create(**fields, stream=True):
        finish = chunk.choices[0].finish_reason or finish
        for delta in chunk.choices[0].delta.tool_calls or []:
            name, text = streamed.get(delta.index, ("", ""))
            streamed[delta.index] = (name + (delta.function.name or ""), text + (delta.function.arguments or ""))
    assert finish == "tool_calls", finish
    whole = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert [(name, json.loads(text)) for name, text in streamed.values()] == whole, (streamed, whole)

    result = {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"time": "10:30"})}
    messages = [*ASK_CLOCK, choice.message.model_dump(exclude_none=True), result]
    after = client.chat.completions.create(**{**fields, "messages": messages}).choices[0]
    assert after.message.content or after.message.tool_calls, after

    quiet = client.chat.completions.create(**fields, tool_choice="none").choices[0]
    assert quiet.message.tool_calls is None and quiet.finish_reason in ("stop", "length"), quiet
    forced = client.chat.completions.create(**{**fields, "messages": HELLO}, tool_choice="required").choices[0]
    assert forced.finish_reason == "tool_calls" and forced.message.tool_calls, forced
    for call in forced.message.tool_calls:
        assert isinstance(json.loads(call.function.arguments)["timezone_city"], str), call
    missing = {"type": "function", "function": {"name": "no_such_tool"}}
    expect(openai.BadRequestError, "tool_choice", lambda: client.chat.completions.create(**fields, tool_choice=missing))


def check_reasoning(client, model):
    fields = dict(model=model, messages=[{"role": "user", "content": "Work out 12 + 30."}], temperature=0, max_tokens=128)
    message = client.chat.completions.create(**fields, reasoning_effort="high").choices[0].message
    reasoning = getattr(message, "reasoning_content", None)
    if reasoning is not None:  # A model without thinking answers directly.
        assert message.reasoning == reasoning and "<think>" not in reasoning, message
    assert "</think>" not in (message.content or ""), message
    plain = client.chat.completions.create(**fields, reasoning_effort="none").choices[0].message
    assert plain.content, plain


def check_completions(client, model):
    answer = client.completions.create(model=model, prompt="One, two, three,", temperature=0, max_tokens=8)
    assert answer.object == "text_completion" and answer.choices[0].text, answer
    chunks = client.completions.create(model=model, prompt="One, two, three,", temperature=0, max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
    many = client.completions.create(model=model, prompt=["One", "Two"], temperature=0, max_tokens=4, n=2)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3], many

    scored = client.completions.create(model=model, prompt="One, two, three", max_tokens=0, echo=True, logprobs=1)
    logprobs = scored.choices[0].logprobs
    assert scored.choices[0].text == "One, two, three" == "".join(logprobs.tokens), scored
    assert logprobs.token_logprobs[0] is None and all(value <= 0 for value in logprobs.token_logprobs[1:]), logprobs
    assert len(logprobs.tokens) == scored.usage.prompt_tokens and scored.usage.completion_tokens == 0, scored


def check_concurrency(client, model):
    def ask(seed):
        fields = dict(model=model, messages=HELLO, max_tokens=12, temperature=0.8, seed=seed)
        return client.chat.completions.create(**fields).choices[0].message.content

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, range(8)))
    assert together == [ask(seed) for seed in range(8)], "an answer does not depend on its neighbours"


def check_leaving_early(client, model):
    for _ in range(5):
        stream = client.chat.completions.create(model=model, messages=HELLO, max_tokens=256, stream=True)
        next(iter(stream))
        stream.close()
    check_chat(client, model)


def check_errors(client, model):
    chat = client.chat.completions.create
    expect(openai.NotFoundError, "model", lambda: chat(model="no-such-model", messages=HELLO))
    expect(openai.BadRequestError, "messages", lambda: chat(model=model, messages=[]))
    expect(openai.BadRequestError, "temperature", lambda: chat(model=model, messages=HELLO, temperature=3))
    expect(openai.BadRequestError, "max_tokens", lambda: chat(model=model, messages=HELLO, max_tokens=-1))
    expect(openai.BadRequestError, "top_k", lambda: chat(model=model, messages=HELLO, extra_body={"top_k": "many"}))
    image = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}]
    parts = [{"role": "user", "content": image}]
    expect(openai.BadRequestError, "messages[0].content[0].type", lambda: chat(model=model, messages=parts))
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such type"}}}
    field = "response_format.json_schema.schema"
    expect(openai.BadRequestError, field, lambda: chat(model=model, messages=HELLO, response_format=schema))
    length = client.models.retrieve(model).max_model_len
    long = [{"role": "user", "content": "word " * (2 * length)}]
    error = expect(openai.BadRequestError, "messages", lambda: chat(model=model, messages=long))
    assert error.code == "context_length_exceeded", error


def expect(kind, param, call):
    """The error that `call` raises, which must be of this kind and about this field."""
    try:
        answer = call()
    except kind as error:
        assert error.param == param and error.message, (error.param, error.message)
        return error
    raise AssertionError(f"no {kind.__name__}: {answer}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base_url", help="such as http://127.0.0.1:8888/v1")
    parser.add_argument("--model", help="the first that the server lists unless given")
    parser.add_argument("--key", default="none")
    options = parser.parse_args()
    client = openai.OpenAI(base_url=options.base_url, api_key=options.key, max_retries=0, timeout=120)
    model = options.model or client.models.list().data[0].id
    checks = {name: check for name, check in globals().items() if name.startswith("check_")}
    failed = 0
    for name, check in checks.items():
        try:
            check(client, model)
            print(f"ok      {name}")
        except Exception:
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}")
    print(f"{len(checks) - failed} of {len(checks)} checks passed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
