// The main function of a fresh Node process: BullMQ as its documentation has it, a Queue, a Worker
// and QueueEvents in one process, over a server that keeps an append-only file; or GroupMQ, which
// has no results, so the worker's event tells the waiters.
//
//     node --expose-gc bench.mjs bullmq 5000 100 /path/of/the/server's/socket
//
// (library, jobs, in flight, socket) prints one line of JSON, of the same meaning as that of
// bench.mjs in the folder `node`. The task that adds job i waits until it has finished, and then
// adds job i + in flight.

import process from 'node:process';
import * as bullmq from 'bullmq';
import * as groupmq from 'groupmq';
import IORedis from 'ioredis';

const library = process.argv[2];
const [n, inFlight] = process.argv.slice(3, 5).map(Number);
const connection = () => new IORedis({path: process.argv[5], maxRetriesPerRequest: null});

const log = [];
const run = async job => {
	log.push(job.data);
	return job.data;
};

// Each gives a function that adds job i of line `first`, and returns its result.
const libraries = {
	async bullmq() {
		const queue = new bullmq.Queue('jobs', {connection: connection()});
		const events = new bullmq.QueueEvents('jobs', {connection: connection()});
		const worker = new bullmq.Worker('jobs', run, {connection: connection(), concurrency: inFlight});
		await Promise.all([events.waitUntilReady(), worker.waitUntilReady(), queue.waitUntilReady()]);
		return async i => (await queue.add('job', i)).waitUntilFinished(events);
	},
	async groupmq() {
		const queue = new groupmq.Queue({redis: connection(), namespace: 'jobs'});
		const worker = new groupmq.Worker({queue, handler: run, concurrency: inFlight});
		const told = new Map();
		worker.on('completed', job => {
			told.get(job.data)(job.data);
			told.delete(job.data);
		});
		worker.run();
		return (i, first) =>
			new Promise((resolve, reject) => {
				told.set(i, resolve);
				queue.add({groupId: String(first), data: i}).catch(reject);
			});
	},
};
const cycle = await libraries[library]();

const results = Array.from({length: n});
const submit = async first => {
	for (let i = first; i < n; i += inFlight) {
		results[i] = await cycle(i, first);
	}
};

globalThis.gc();
const cpuBefore = process.cpuUsage();
const start = performance.now();
await Promise.all(Array.from({length: inFlight}, (_, first) => submit(first)));
const seconds = (performance.now() - start) / 1e3;
const {user, system} = process.cpuUsage(cpuBefore);
const cpu = (user + system) / 1e6;

process.stdout.write(`${JSON.stringify({results, log, seconds, cpu})}\n`, () => process.exit(0));
