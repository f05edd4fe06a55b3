// The main function of a fresh Node process: BullMQ as its documentation has it, a Queue, a Worker
// and QueueEvents in one process, over a server that keeps an append-only file.
//
//     node --expose-gc durable.mjs 5000 100 /path/of/the/server's/socket
//
// (jobs, in flight, socket) prints one line of JSON, of the same meaning as that of bench.mjs.
// Whoever adds job i waits until it has finished, and then adds job i + in flight.

import process from 'node:process';
import {Queue, QueueEvents, Worker} from 'bullmq';
import IORedis from 'ioredis';

const [n, inFlight] = process.argv.slice(2, 4).map(Number);
const connection = () => new IORedis({path: process.argv[4], maxRetriesPerRequest: null});

const log = [];
const queue = new Queue('jobs', {connection: connection()});
const events = new QueueEvents('jobs', {connection: connection()});
const worker = new Worker(
	'jobs',
	async job => {
		log.push(job.data);
		return job.data;
	},
	{connection: connection(), concurrency: inFlight},
);
await Promise.all([events.waitUntilReady(), worker.waitUntilReady(), queue.waitUntilReady()]);

const results = Array.from({length: n});
const submit = async first => {
	for (let i = first; i < n; i += inFlight) {
		const job = await queue.add('job', i);
		results[i] = await job.waitUntilFinished(events);
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
