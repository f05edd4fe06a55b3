// The main function of a fresh Node process: one workload of one library.
//
//     node --expose-gc bench.mjs p-queue-10 burst 100000 10000 1000 100
//
// (library, workload, jobs, sessions, outstanding, width) prints one line of JSON: how long it
// took, what every job returned and the log of starts and ends. Whether they are right is
// checked by the same Python code as for every other peer. The workloads mean what those of the
// same name mean in benchmarks/workloads.py.

import process from 'node:process';
import {libraries} from './queues.mjs';

const [name, workload, ...numbers] = process.argv.slice(2);
const [n, sessionCount, outstanding, width] = numbers.map(Number);
const library = libraries[name];

// The other tasks and the I/O get their turn, as at a checkpoint of Trio.
const immediate = () => new Promise(resolve => {
	setImmediate(resolve);
});

const keysOf = count => Array.from({length: count}, (_, number) => `user-${number}`);

const noOp = log => async i => {
	log.push(i);
	return i;
};

const withCheckpoint = (log, checkpoint) => async i => {
	log.push(i);
	await checkpoint();
	log.push(~i);
	return i;
};

class Clock {
	constructor() {
		globalThis.gc();
		this.cpu = process.cpuUsage();
		this.start = performance.now();
	}

	stop() {
		this.seconds = (performance.now() - this.start) / 1e3;
		const {user, system} = process.cpuUsage(this.cpu);
		this.cpu = (user + system) / 1e6;
	}
}

const shuffled = (array, seed = 1) => {
	for (let i = array.length - 1; i > 0; i--) {
		seed = (seed * 48_271) % 0x7F_FF_FF_FF;
		const j = seed % (i + 1);
		[array[i], array[j]] = [array[j], array[i]];
	}

	return array;
};

const burst = async body => {
	const log = [];
	const job = body(log);
	const keys = keysOf(sessionCount);
	const clock = new Clock();
	const {submit} = library.sessions(width);
	const promises = [];
	for (let i = 0; i < n; i++) {
		promises.push(submit(keys[i % sessionCount], job, i));
	}

	const results = await Promise.all(promises);
	clock.stop();
	return {clock, results, log};
};

const topUp = async (submit, keys, job, ran) => {
	let i = 0;
	while (i < n) {
		const room = Math.min(n, ran() + outstanding);
		while (i < room) {
			submit(keys[i % keys.length], job, i);
			i++;
		}

		await immediate();
	}
};

const waiters = () => {
	const {submit, clear} = library.sessions(width, {paused: true});
	const log = [];
	const job = noOp(log);
	const keys = keysOf(sessionCount);
	let told = 0;
	const controllers = [];
	const promises = [];
	return {
		clear,
		log,
		promises,
		controllers,
		told: () => told,
		submitAll({abortable}) {
			for (let i = 0; i < n; i++) {
				let options;
				if (abortable) {
					const controller = new AbortController();
					controllers.push(controller);
					options = {signal: controller.signal};
				}

				promises.push(submit(keys[i % sessionCount], job, i, options));
			}
		},
		countTold() {
			for (const [i, promise] of promises.entries()) {
				promises[i] = promise.then(undefined, () => {
					told++;
				});
			}
		},
	};
};

const heapUsed = async () => {
	for (let i = 0; i < 5; i++) {
		await immediate();
		globalThis.gc();
	}

	return process.memoryUsage().heapUsed;
};

const workloads = {
	burst: () => burst(noOp),
	checkpoint: () => burst(log => withCheckpoint(log, immediate)),
	// The least that an `await` can be here: one microtask, no I/O in between.
	microtask: () => burst(log => withCheckpoint(log, async () => {})),

	async steady() {
		const log = [];
		const keys = keysOf(sessionCount);
		const clock = new Clock();
		const {submit} = library.sessions(width);
		const promises = [];
		await topUp((key, job, i) => promises.push(submit(key, job, i)), keys, noOp(log), () => log.length);
		const results = await Promise.all(promises);
		clock.stop();
		return {clock, results, log};
	},

	async keys() {
		const tally = {count: 0, total: 0};
		const names = keysOf(n);
		const job = async i => {
			tally.count++;
			tally.total += i;
			return i;
		};

		const before = process.resourceUsage().maxRSS;
		const clock = new Clock();
		const {submit} = library.sessions(width);
		await topUp(submit, names, job, () => tally.count);
		while (tally.count < n) {
			await immediate();
		}

		clock.stop();
		const growth = (process.resourceUsage().maxRSS - before) / 1024;
		return {clock, tally, figures: {memory_growth_mb: growth}};
	},

	async uncontended() {
		const log = [];
		const job = noOp(log);
		const {submit} = library.sessions(width);
		const results = [];
		const clock = new Clock();
		for (let i = 0; i < n; i++) {
			results.push(await submit('alice', job, i));
		}

		clock.stop();
		return {clock, results, log};
	},

	async priorities() {
		const log = [];
		const job = noOp(log);
		const order = shuffled(Array.from({length: n}, (_, i) => i));
		const clock = new Clock();
		const line = library.line();
		const promises = order.map((priority, i) => line.put(job, i, priority));
		line.start();
		const results = await Promise.all(promises);
		clock.stop();
		return {clock, results, log, ranked: log.map(i => order[i])};
	},

	async clear() {
		const jobs = waiters();
		jobs.submitAll({abortable: false});
		jobs.countTold();
		await immediate();
		const clock = new Clock();
		jobs.clear();
		await Promise.all(jobs.promises);
		clock.stop();
		return {clock, told: jobs.told(), ran: jobs.log.length};
	},

	async cancel() {
		const jobs = waiters();
		jobs.submitAll({abortable: true});
		jobs.countTold();
		await immediate();
		const order = shuffled([...jobs.controllers]);
		const clock = new Clock();
		for (const controller of order) {
			controller.abort();
		}

		await Promise.all(jobs.promises);
		clock.stop();
		return {clock, told: jobs.told(), ran: jobs.log.length};
	},

	async waiting() {
		const jobs = waiters();
		const before = await heapUsed();
		jobs.submitAll({abortable: false});
		const bytes = (await heapUsed()) - before;
		if (jobs.log.length > 0 || jobs.promises.length !== n) {
			throw new Error('the jobs did not wait');
		}

		return {bytes};
	},

	async idle() {
		const tally = {count: 0};
		const job = async i => {
			tally.count++;
			return i;
		};

		const waves = ['first', 'second'].map(wave => Array.from({length: n}, (_, number) => `${wave}-${number}`));
		const {submit} = library.sessions(width);
		const sizes = [await heapUsed()];
		for (const wave of waves) {
			await Promise.all(wave.map((key, i) => submit(key, job, i)));
			sizes.push(await heapUsed());
		}

		return {bytes: sizes[2] - sizes[1], figures: {first_wave_bytes: (sizes[1] - sizes[0]) / n}};
	},
};

workloads.waiting_alone = workloads.waiting;

const {clock = {seconds: 0, cpu: 0}, ...answer} = await workloads[workload]();
process.stdout.write(`${JSON.stringify({...answer, seconds: clock.seconds, cpu: clock.cpu})}\n`);
