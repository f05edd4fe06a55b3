// The shapes of what the server sends. For the type checker alone: it is not served.

export type Step = [number, string];
export type Job = {id: number, name: string, session: string | null, lane: string, label: string,
  state: string, slot?: string | null, cancel?: boolean, priority?: number, submitted: number,
  since?: number | null, started: number | null, finished: number | null, steps: Step[]};
export type Rate = {unit: string, left: number, most: number, full_at: number | null};
export type Row = {name: string, template: boolean, alive: number, limit: number | null, slots: number,
  active: number, lent: number, cancelling: number, overdue: number, abandoned: number, waiting: number,
  in_sessions: number, in_lane: number, oldest: number, paused: boolean,
  paused_until: number | null, rate_until: number | null, rates: Rate[], finished: number,
  failed: number, quantiles: number[] | null, longest: {job: number, reason: string} | null,
  parked: number | null, only_stored?: boolean, stored_paused?: boolean};
export type Group = {name: string, members: string[], slots: number, limit: number | null,
  rates: Rate[]};
export type Note = {seq: number, at: number, wall: number, level: string, kind: string, lane: string,
  job: number | null, text: string, count: number};
export type Numbers = {key: string, waiting: number, active: number, paused: boolean, oldest: number | null};
export type Session = Numbers & {next: Job[]};
export type Line = Job & {reason?: string};
export type Ended = {at: number, recorded: number, outcomes: Record<string, number>, waits: Record<string, number>, failed: number, since: number | null, failed_since: number | null,
  groups: {error: string, name: string, label: string, count: number, last: Line, trace: string}[],
  names: {name: string, count: number, quantiles: number[] | null}[], jobs: Line[]};
export type Listed = Numbers & {at: number, jobs: Line[], ended?: Ended, tried?: {at: number, limit: number, reason: string}[]};
export type Found = {sessions: string[], lanes: string[], jobs: Line[], ended: Line[], looked: number, there: number, most: number};
export type Totals = {active: number, waiting: number, parked: number | null, sessions: number, abandoned: number,
  oldest: number, oldest_lane: string, slots: number, lent: number, limit: number | null,
  finished: number, failed: number, cancelled: number, quantiles: number[] | null};
export type Told = {text: string, advice: string | null, job: number | null, lane?: string, stored: boolean};
export type Problem = Told & {kind: string, lane: string};
export type Verdict = {health: Problem[], more_problems?: number, left_out: string[], told?: Told[]};
export type Frame = {n: number, at: number, wall: number, pid: number, totals: Totals, health: Problem[], more_problems: number, left_out: string[], told: Told[], lanes: Row[], more_lanes: number,
  groups: Group[], jobs: Job[], ended: Job[], record: number, sessions: Session[],
  longest: {sessions: Numbers[], whole: boolean}, notes: Note[]};
export type Stored = {id: number, name: string, session: string | null, lane: string, state: string,
  why: string | null, until: number | null, attempt: number, crashes: number,
  error: string | null, submitted_at: number};
export type Asked = {job: number | null, instance: string, since: number};
export type Activity = {batch: number, longest_wait: number, image_age: number | null, commits_a_second: number | null, late_share: number | null};
export type View = {at: number, error?: string, age?: number, health: Problem[], left_out: string[], totals: Record<string, number>, more_dead: number, jobs: Stored[],
  lanes: Record<string, {waiting: number, parked: number, running: number, dead: number,
  unhandled: number, concurrency: number | null, paused: boolean}>, ended: Record<string, Record<string, number>>,
  instances: {id: string, host: string, pid: number, since: number, running: number, names: string[], lanes: Record<string, number>, activity: Activity | null}[],
  dead: {handler: string, error: string, count: number, example: string}[],
  locks: {key: string, holding: number, waiting: number, holders: Asked[], waiters: Asked[]}[],
  quotas: {name: string, levels: {used: number | string, limit: {limit: number | string, unit: string, per: number | string, timezone: string},
  full_at: number | null}[], waiting: number, waiters: Asked[]}[],
  paused: Record<string, number | null>, schedules: {name: string, next: number | null, last: number | null, skipped: number}[]};
export type Root = {job: number, chain: [number, string][], text: string, jobs: number[], advice: string | null};
export type StoredFacts = Stored & {at: number, roots: Root[], children: [number, number] | null, waits: Record<string, number>, payload?: string | null, outcome?: string | null,
  history: {number: number, how: string | null, host: string, pid: number, error: string | null, started_at: number, ended_at: number | null}[]};
export type JobFacts = Job & {owner: string | null, parent: Job | null, at: number, place: number | null,
  line?: number, waits?: Record<string, number>, roots: Root[], children: [number, number] | null};
