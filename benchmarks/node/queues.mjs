// Each library as its own documentation says, in the one arrangement that gives order per
// session and a limit over all: a Map of queues of one in front of a queue of `width`.
//
// A session's job is a function that puts the real job into the queue behind and waits for it.
// A session is forgotten when nothing waits in it, as it ends: 10^6 keys must not stay.

import fastq from 'fastq';
import pLimit from 'p-limit';
import PQueue10 from 'p-queue';
import PQueue9 from 'p-queue-9';

const pQueue = PQueue => ({
	sessions(width, {paused = false} = {}) {
		const behind = new PQueue({concurrency: width, autoStart: !paused});
		const sessions = new Map();
		return {
			submit(key, function_, i, options) {
				let session = sessions.get(key);
				if (session === undefined) {
					session = new PQueue({concurrency: 1});
					sessions.set(key, session);
				}

				return session.add(async () => {
					try {
						return await behind.add(() => function_(i), options);
					} finally {
						if (session.size === 0) {
							sessions.delete(key);
						}
					}
				}, options);
			},
			clear() {
				for (const session of sessions.values()) {
					session.clear();
				}

				behind.clear();
			},
		};
	},

	// A queue of one that starts when it is let go.
	line(options) {
		const queue = new PQueue({concurrency: 1, autoStart: false, ...options});
		return {
			put: (function_, i, priority) => queue.add(() => function_(i), {priority}),
			start: () => queue.start(),
		};
	},
});

// What p-queue's documentation advises for tens of thousands of waiting tasks with many
// different priorities: a queue class of one's own. This one is a binary heap.
class HeapQueue {
	#heap = [];
	#arrivals = 0;

	enqueue(run, {priority = 0, id} = {}) {
		const heap = this.#heap;
		const item = {run, id, priority, arrival: this.#arrivals++};
		let index = heap.length;
		while (index > 0) {
			const parent = (index - 1) >> 1;
			if (!before(item, heap[parent])) {
				break;
			}

			heap[index] = heap[parent];
			index = parent;
		}

		heap[index] = item;
	}

	dequeue() {
		const heap = this.#heap;
		const first = heap[0];
		const last = heap.pop();
		if (heap.length > 0) {
			let index = 0;
			for (;;) {
				let child = 2 * index + 1;
				if (child >= heap.length) {
					break;
				}

				if (child + 1 < heap.length && before(heap[child + 1], heap[child])) {
					child++;
				}

				if (!before(heap[child], last)) {
					break;
				}

				heap[index] = heap[child];
				index = child;
			}

			heap[index] = last;
		}

		return first?.run;
	}

	get size() {
		return this.#heap.length;
	}

	filter({priority}) {
		return this.#heap.filter(item => item.priority === priority).map(item => item.run);
	}
}

const before = (a, b) => a.priority > b.priority || (a.priority === b.priority && a.arrival < b.arrival);

const pQueueWithHeap = PQueue => ({
	line: () => pQueue(PQueue).line({queueClass: HeapQueue}),
});

const pLimits = {
	sessions(width, {paused = false} = {}) {
		const behind = pLimit({concurrency: width, rejectOnClear: true});
		if (paused) {
			// It has no pause: jobs that never end hold every slot.
			for (let i = 0; i < width; i++) {
				behind(() => new Promise(() => {}));
			}
		}

		const sessions = new Map();
		return {
			submit(key, function_, i) {
				let session = sessions.get(key);
				if (session === undefined) {
					session = pLimit({concurrency: 1, rejectOnClear: true});
					sessions.set(key, session);
				}

				return session(async () => {
					try {
						return await behind(function_, i);
					} finally {
						if (session.pendingCount === 0) {
							sessions.delete(key);
						}
					}
				});
			},
			clear() {
				for (const session of sessions.values()) {
					session.clearQueue();
				}

				behind.clearQueue();
			},
		};
	},
};

const fastQueues = {
	sessions(width, {paused = false} = {}) {
		const behind = fastq.promise(({function_, i}) => function_(i), width);
		if (paused) {
			behind.pause();
		}

		const sessions = new Map();
		return {
			submit(key, function_, i) {
				let session = sessions.get(key);
				if (session === undefined) {
					session = fastq.promise(job => behind.push(job), 1);
					session.drain = () => sessions.delete(key);
					sessions.set(key, session);
				}

				return session.push({function_, i});
			},
			clear() {
				for (const session of sessions.values()) {
					session.abort();
				}

				behind.abort();
			},
		};
	},
};

export const libraries = {
	'p-queue-10': pQueue(PQueue10),
	'p-queue-10-heap': pQueueWithHeap(PQueue10),
	'p-queue-9': pQueue(PQueue9),
	'p-limit': pLimits,
	fastq: fastQueues,
};
