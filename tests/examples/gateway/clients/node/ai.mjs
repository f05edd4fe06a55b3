// The AI SDK with its OpenAI provider: node ai.mjs BASE_URL
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const openai = createOpenAI({ baseURL: process.argv[2], apiKey: "any" });
const model = openai.responses("built-in");

const hello = await generateText({ model, prompt: "hello" });
assert.match(hello.text, /^Hello!/);
assert.equal(hello.finishReason, "stop");

const stream = streamText({ model, prompt: "long answer of 5" });
let text = "";
for await (const piece of stream.textStream) text += piece;
assert.equal(text.split("\n").length, 5);

const tools = {
  get_weather: tool({
    description: "The weather",
    inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } } }),
    execute: async ({ city }) => `${city} is sunny`,
  }),
};
const weather = await generateText({
  model,
  tools,
  stopWhen: stepCountIs(3),
  prompt: "what is the weather in Paris?",
});
assert.match(weather.text, /Paris is sunny/);
assert.equal(weather.steps.length, 2);

const streamed = streamText({ model, tools, stopWhen: stepCountIs(3), prompt: "weather in Rome" });
let said = "";
for await (const piece of streamed.textStream) said += piece;
assert.match(said, /Rome is sunny/);

const chat = await generateText({ model: openai.chat("built-in"), prompt: "hello" });
assert.match(chat.text, /^Hello!/);

// a conversation of messages: the earlier answer comes as a reference to its item
const more = await generateText({
  model,
  messages: [
    { role: "user", content: "hello" },
    ...hello.response.messages,
    { role: "user", content: "two" },
  ],
});
assert.match(more.text, /message 2/);

// an answer that has a schema, no tool where none may be called, and an error that can be read
const properties = { name: { type: "string" }, people: { type: "integer" } };
const required = ["name", "people"];
const schema = jsonSchema({ type: "object", properties, required, additionalProperties: false });
const { object } = await generateObject({ model, schema, prompt: "Paris 5" });
assert.equal(object.people, 5);
const none = await generateText({ model, tools, toolChoice: "none", prompt: "weather in Rome" });
assert.equal(none.toolCalls.length, 0);
const short = await generateText({ model, prompt: "long answer", maxOutputTokens: 3 });
assert.equal(short.finishReason, "length");
await assert.rejects(generateText({ model, prompt: "fail now" }), /the built-in model failed/);
console.log("all good");
