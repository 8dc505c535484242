// The JavaScript driver: keeps one context alive and runs cells in it, on node's own REPL evaluator, so that `let`, `const` and
// top-level await carry from cell to cell. Started as `node -e <this file>`; the protocol is the Python driver's.
'use strict';
{
const fs = require('node:fs');
const repl = require('node:repl');
const util = require('node:util');
const { PassThrough } = require('node:stream');

const MAX_VALUE = 16 << 20;
let cell = null;
let count = 0;
let errored = false;

// The private way to the host. Writes are synchronous: an endless loop's output still leaves.
function send(event, fields = {}) {
  let data = Buffer.from(JSON.stringify({ cell, event, ...fields }) + '\n');
  while (data.length) {
    try {
      data = data.subarray(fs.writeSync(1, data));
    } catch (failure) {
      if (failure.code !== 'EAGAIN') throw failure;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
}

// Both streams in the order they were written, gathered for a moment.
let gathered = '';
let current = null;
let timer = null;
function flush() {
  if (gathered) send(current, { text: gathered });
  gathered = '';
  if (timer) clearTimeout(timer);
  timer = null;
}
function put(name, chunk, encoding, callback) {
  const text = typeof chunk === 'string' ? chunk : Buffer.from(chunk).toString('utf8');
  if (current !== name) flush();
  current = name;
  gathered += text;
  if (gathered.length > 32 << 10) flush();
  else if (!timer) timer = setTimeout(flush, 50).unref();
  const done = typeof encoding === 'function' ? encoding : callback;
  if (done) process.nextTick(done);
  return true;
}
process.stdout.write = (...rest) => put('stdout', ...rest);
process.stderr.write = (...rest) => put('stderr', ...rest);

function display(data, main = false) {
  flush();
  const kept = {};
  for (const [kind, value] of Object.entries(data)) {
    const size = (typeof value === 'string' ? value : JSON.stringify(value) ?? '').length;
    if (size <= MAX_VALUE) kept[kind] = value;
    else if (Object.keys(data).length === 1) {
      return fail('ResultTooLarge',
        `the ${kind} form of the result has ${size} bytes, over the limit of ${MAX_VALUE}: write it to a file, or show less of it`, '');
    }
  }
  send('result', { main, data: kept });
}

function fail(name, value, traceback) {
  if (errored) return;
  errored = true;
  flush();
  send('error', { name, value, traceback });
}

function report(failure) {
  if (failure instanceof Error || (failure && failure.stack && failure.message !== undefined)) {
    const stack = String(failure.stack).split('\n').filter((line) => !/node:|REPLServer|\[eval\]/.test(line)).join('\n');
    fail(failure.name ?? 'Error', String(failure.message), stack);
  } else {
    fail('Error', util.inspect(failure), '');
  }
}

function format(value) {
  const data = { 'text/plain': typeof value === 'string' ? value : util.inspect(value, { depth: 4, maxArrayLength: 1000 }) };
  if (value && typeof value === 'object' && (Array.isArray(value) || Object.getPrototypeOf(value)?.constructor?.name === 'Object')) {
    try {
      const text = JSON.stringify(value);
      if (text && text.length <= MAX_VALUE) data['application/json'] = JSON.parse(text);
    } catch { /* a value with cycles has its text alone */ }
  }
  return data;
}

const silent = new PassThrough();
const server = repl.start({ prompt: '', input: new PassThrough(), output: silent, terminal: false, useGlobal: true, ignoreUndefined: true });
silent.resume();
server.removeAllListeners('SIGINT');
global.display = (data, main) => display(typeof data === 'object' && data && Object.keys(data).some((key) => key.includes('/')) ? data : format(data), main);
global.require = server.context.require ?? require;

// The evaluator gives what a cell throws to its domain rather than to its caller.
let thrown = null;
server._domain?.removeAllListeners('error');
server._domain?.on('error', (failure) => (thrown ? thrown(failure) : report(failure)));
function evaluate(code, name) {
  return new Promise((resolve, reject) => {
    thrown = reject;
    server.eval(code + '\n', server.context, name, (failure, value) => (failure ? reject(failure) : resolve(value)));
  });
}

// A cell is a script, which knows import() alone: `import` statements that stand at the start of a line become that.
const IMPORT = /^([ \t]*)import\s+(?:([\w$*{][^'"`;]*?)\s+from\s+)?(['"])([^'"\n]+)\3[ \t]*;?[ \t]*$/gm;
function withoutImports(code) {
  return code.replace(IMPORT, (whole, indent, names, quote, module) => {
    const load = `await import(${quote}${module}${quote});`;
    if (!names) return indent + load;
    const parts = /^(?:([\w$]+)\s*,?\s*)?(?:\*\s+as\s+([\w$]+)|\{([^}]*)\})?$/.exec(names.trim());
    if (!parts) return whole;
    const [, standard, all, some] = parts;
    const picked = [standard && `default: ${standard}`, some?.replace(/\s+as\s+/g, ': ')].filter(Boolean).join(', ');
    const statements = [all && `var ${all} = ${load}`, picked && `var { ${picked} } = ${load}`];
    return indent + statements.filter(Boolean).join(' ');
  });
}

// Interrupts: node cannot break a busy loop from inside, so the host kills and restarts what does not answer; a cell
// that waits is given up here.
let interrupt = null;
process.on('SIGINT', () => interrupt?.());
process.on('uncaughtException', (failure) => (cell === null ? undefined : report(failure)));
process.on('unhandledRejection', (failure) => (cell === null ? undefined : report(failure)));

async function run(request) {
  cell = request.cell;
  errored = false;
  const saved = {};
  for (const [key, value] of Object.entries(request.env ?? {})) {
    saved[key] = process.env[key];
    process.env[key] = value;
  }
  count += 1;
  send('started', { count });
  try {
    const interrupted = new Promise((_, reject) => {
      interrupt = () => reject(Object.assign(new Error('interrupted'), { name: 'KeyboardInterrupt' }));
    });
    let value = await Promise.race([evaluate(withoutImports(request.code), `cell ${count}`), interrupted]);
    if (value && typeof value.then === 'function') value = await Promise.race([value, interrupted]);
    if (value !== undefined && !/;\s*$/.test(request.code)) display(format(value), true);
  } catch (failure) {
    report(failure);
  }
  interrupt = null;
  flush();
  for (const [key, value] of Object.entries(saved)) {
    if (value === undefined) delete process.env[key];
    else process.env[key] = value;
  }
  send('done');
  cell = null;
}

// A cell that calls process.exit is told, and the context goes on.
process.exit = (code) => {
  throw Object.assign(new Error(String(code ?? process.exitCode ?? 0)), { name: 'SystemExit' });
};

let waiting = Promise.resolve();
let rest = Buffer.alloc(0);
fs.createReadStream(null, { fd: 0, autoClose: false }).on('data', (chunk) => {
  rest = Buffer.concat([rest, chunk]);
  for (let end = rest.indexOf(10); end >= 0; end = rest.indexOf(10)) {
    const request = JSON.parse(rest.subarray(0, end).toString('utf8'));
    rest = rest.subarray(end + 1);
    waiting = waiting.then(() => run(request));
  }
}).on('end', () => process.reallyExit(0));
send('ready', { node: process.version });
}
