// The `anthropic` client for Node: node anthropic.mjs BASE_URL
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const baseURL = process.argv[2].replace(/\/v1$/, "");
const client = new Anthropic({ baseURL, apiKey: "any", timeout: 120_000 });
const more = { model: "built-in", max_tokens: 1000 };

const hello = await client.messages.create({
  ...more,
  system: "be kind",
  messages: [{ role: "user", content: "hello" }],
});
assert.equal(hello.stop_reason, "end_turn");
assert.match(hello.content[0].text, /^Hello!/);

let text = "";
const asked = [{ role: "user", content: "long answer of 5" }];
const stream = client.messages.stream({ ...more, messages: asked }).on("text", (piece) => {
  text += piece;
});
const long = await stream.finalMessage();
assert.equal(long.content[0].text, text);
assert.equal(text.split("\n").length, 5);

// a tool loop
const tools = [
  {
    name: "get_weather",
    input_schema: { type: "object", properties: { city: { type: "string" } } },
  },
];
const messages = [{ role: "user", content: "what is the weather in Paris?" }];
const called = await client.messages.create({ ...more, tools, messages });
assert.equal(called.stop_reason, "tool_use");
const [use] = called.content;
assert.deepEqual(use.input, { city: "Paris" });
messages.push({ role: "assistant", content: called.content });
const result = { type: "tool_result", tool_use_id: use.id, content: "sunny" };
messages.push({ role: "user", content: [result] });
const last = await client.messages.create({ ...more, tools, messages });
assert.equal(last.content[0].text, "sunny");

await assert.rejects(
  client.messages.create({ ...more, top_k: 5, messages }),
  (error) => error.status === 400 && /top_k/.test(error.message),
);

// an abort cancels the job: the only slot is free again
const controller = new AbortController();
setTimeout(() => controller.abort(), 500);
const slow = [{ role: "user", content: "slow 600" }];
await assert.rejects(
  client.messages.create({ ...more, messages: slow }, { signal: controller.signal }),
);
const again = [{ role: "user", content: "hello" }];
assert.equal((await client.messages.create({ ...more, messages: again })).stop_reason, "end_turn");
console.log("all good");
