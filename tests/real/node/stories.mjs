// Stories told through OpenAI's client for Node: `node stories.mjs NAME` ends with 0 when the promise holds.
import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";

const client = new OpenAI({ baseURL: process.env.GATEWAY_URL, apiKey: process.env.GATEWAY_KEY, maxRetries: 0 });
const messages = [{ role: "user", content: "Say hello." }];
const asked = { model: "m", messages, max_tokens: 6, seed: 1, ignore_eos: true };
const long = { ...asked, model: "slow", max_tokens: 5000 };
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", parameters } }];

async function every(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return pieces;
}

async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  assert.fail("nothing was thrown");
}

const stories = {
  async whole() {
    const { data, response, request_id } = await client.chat.completions.create(asked).withResponse();
    assert.equal(data.choices[0].finish_reason, "length");
    assert.equal(data.usage.completion_tokens, 6);
    assert.ok(["a", "b"].includes(response.headers.get("x-kvgate-replica")));
    assert.equal(request_id, response.headers.get("x-request-id"));
  },

  async streamed() {
    const whole = await client.chat.completions.create(asked);
    const chunks = await every(await client.chat.completions.create({ ...asked, stream: true }));
    assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), whole.choices[0].message.content);
    const helper = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
    assert.equal(await helper.finalContent(), whole.choices[0].message.content);
    assert.equal((await helper.totalUsage()).completion_tokens, 6);
  },

  async tools() {
    const request = { model: "m", messages, tools, tool_choice: "required" };
    const whole = await client.chat.completions.create(request);
    const streamed = await client.chat.completions.stream(request).finalChatCompletion();
    for (const answer of [whole, streamed]) {
      assert.equal(answer.choices[0].finish_reason, "tool_calls");
      assert.deepEqual(JSON.parse(answer.choices[0].message.tool_calls[0].function.arguments), { city: "text" });
    }
  },

  async responses() {
    const made = await client.responses.create({ model: "m", input: "Say hello." });
    assert.equal((await client.responses.retrieve(made.id)).output_text, made.output_text);
    const events = await every(await client.responses.create({ model: "m", input: "Say hello.", stream: true }));
    assert.equal(events.at(-1).type, "response.completed");
    await client.responses.delete(made.id);
    assert.ok((await failure(client.responses.retrieve(made.id))) instanceof OpenAI.NotFoundError);
  },

  async resources() {
    const { data } = await client.embeddings.create({ model: "m", input: ["a", "b", "a"], dimensions: 8 });
    assert.deepEqual(data[0].embedding, data[2].embedding);
    assert.equal(data[0].embedding.length, 8);
    assert.ok((await every(client.models.list())).some((model) => model.id === "m"));
    const file = await toFile(Buffer.alloc(1_500_000), "a.wav");
    assert.ok((await client.audio.transcriptions.create({ model: "m", file })).text);
    const speech = await client.audio.speech.create({ model: "m", voice: "alloy", input: "Hello there" });
    assert.ok((await speech.arrayBuffer()).byteLength > 1000);
  },

  async leaves_a_stream() {
    for await (const _ of await client.chat.completions.create({ ...long, stream: true })) break;
  },

  async aborts_a_stream() {
    const stream = await client.chat.completions.create({ ...long, stream: true });
    for await (const _ of stream) stream.controller.abort();
  },

  async aborts_a_whole_answer() {
    const waiting = client.chat.completions.create(long, { signal: AbortSignal.timeout(300) });
    assert.ok((await failure(waiting)) instanceof OpenAI.APIUserAbortError);
  },

  async times_out() {
    assert.ok((await failure(client.chat.completions.create(long, { timeout: 300 }))) instanceof OpenAI.APIConnectionTimeoutError);
  },

  async errors() {
    const cases = [
      [{ model: "nobody" }, OpenAI.NotFoundError, 404, "model_not_found"],
      [{ model: "" }, OpenAI.BadRequestError, 400, "missing_model"],
      [{ temperature: -1 }, OpenAI.BadRequestError, 400, 400],
      [{ user: "x".repeat(4_000_000) }, OpenAI.APIError, 413, "body_too_large"],
      [{ model: "dead" }, OpenAI.InternalServerError, 503, "no_replica_ready"],
      [{ model: "locked" }, OpenAI.InternalServerError, 502, "upstream_auth"],
    ];
    for (const [change, kind, status, code] of cases) {
      const error = await failure(client.chat.completions.create({ ...asked, ...change }));
      assert.ok(error instanceof kind, `${code}: ${error}`);
      assert.deepEqual([error.status, error.code], [status, code]);
    }
    const stranger = new OpenAI({ baseURL: client.baseURL, apiKey: "wrong", maxRetries: 0 });
    assert.ok((await failure(stranger.chat.completions.create(asked))) instanceof OpenAI.AuthenticationError);
  },

  // The replica answers the first request with 503 and retry-after.
  async waits_and_tries_again() {
    const answer = await client.chat.completions.create({ ...asked, model: "solo" }, { maxRetries: 1 });
    assert.equal(answer.choices[0].finish_reason, "length");
  },

  // The replica breaks its stream off after three events.
  async hears_of_a_broken_stream() {
    const chunks = [];
    const reading = (async () => {
      for await (const chunk of await client.chat.completions.create({ ...asked, model: "solo", stream: true })) chunks.push(chunk);
    })();
    const error = await failure(reading);
    assert.ok(error instanceof OpenAI.APIError, String(error));
    assert.equal(error.code, "upstream_reset");
    assert.equal(chunks.length, 3);
  },
};

await stories[process.argv[2]]();
