// The `openai` client for Node: node openai.mjs BASE_URL
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", timeout: 120_000 });

const hello = await client.responses.create({ input: "hello" });
assert.equal(hello.status, "completed");
assert.match(hello.output_text, /^Hello!/);

// a second request to a conversation waits its turn
const conversation = (await client.conversations.create()).id;
const order = [];
const ask = async (input) => {
  const response = await client.responses.create({ input, conversation });
  order.push(response.output_text);
};
const first = ask("slow 1");
await new Promise((resolve) => setTimeout(resolve, 300));
await Promise.all([first, ask("two")]);
assert.match(order[0], /^Sorry/);
assert.match(order[1], /message 2/);

// streams: no gap, one terminal event
const numbers = [];
let text = "";
let last;
for await (const event of await client.responses.create({ input: "long answer of 5", stream: true })) {
  numbers.push(event.sequence_number);
  if (event.type === "response.output_text.delta") text += event.delta;
  last = event;
}
assert.deepEqual(numbers, numbers.map((_, place) => place));
assert.equal(last.type, "response.completed");
assert.equal(last.response.output[0].content[0].text, text);

// background, and a resumed feed
const background = await client.responses.create({ input: "long answer of 8", background: true });
const seen = [];
for await (const event of await client.responses.retrieve(background.id, { stream: true })) {
  seen.push(event.sequence_number);
  if (seen.length === 10) break;
}
for await (const event of await client.responses.retrieve(background.id, {
  stream: true,
  starting_after: seen.at(-1),
})) {
  seen.push(event.sequence_number);
}
assert.deepEqual(seen, seen.map((_, place) => place));

// functions
const tools = [
  {
    type: "function",
    name: "get_weather",
    parameters: { type: "object", properties: { city: { type: "string" } } },
    strict: false,
  },
];
const asked = await client.responses.create({ input: "weather in Paris", tools });
const call = asked.output[0];
assert.equal(call.type, "function_call");
const told = await client.responses.create({
  previous_response_id: asked.id,
  tools,
  input: [{ type: "function_call_output", call_id: call.call_id, output: "sunny" }],
});
assert.equal(told.output_text, "sunny");

// half an emoji is refused at once
const half = { input: "hello", metadata: { title: "great 😀".slice(0, 7) } };
await assert.rejects(client.responses.create(half), { status: 400 });

// an answer that has a schema
const format = {
  type: "json_schema",
  name: "city",
  schema: { type: "object", properties: { people: { type: "integer" } } },
};
const parsed = await client.responses.parse({ input: "Paris 5", text: { format } });
assert.deepEqual(JSON.parse(parsed.output_text), { people: 5 });

// an abort cancels the job: the only slot is free again
const controller = new AbortController();
setTimeout(() => controller.abort(), 500);
await assert.rejects(client.responses.create({ input: "slow 600" }, { signal: controller.signal }));
assert.equal((await client.responses.create({ input: "hello" })).status, "completed");
console.log("all good");
