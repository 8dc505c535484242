// The JavaScript SDK against a server that is there already: E2B_* in the environment say where.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'

import { createRequire } from 'node:module'
const require = createRequire(process.env.E2B_NODE_PACKAGES)
const { Sandbox, CommandExitError, FilesystemEventType, NotFoundError, TimeoutError } = require('e2b')

let sandbox

before(async () => {
  sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata: { from: 'node' }, envs: { COLOUR: 'blue' } })
})

after(async () => {
  await sandbox.kill()
})

/** Polls until `condition` holds; a bounded wait. */
async function until(condition, seconds = 10) {
  const end = Date.now() + seconds * 1000
  while (Date.now() < end) {
    const value = await condition()
    if (value) return value
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  assert.fail(`did not come true within ${seconds} s`)
}

test('a sandbox is described, listed and found again', async () => {
  assert.equal(await sandbox.isRunning(), true)
  const info = await Sandbox.getInfo(sandbox.sandboxId)
  assert.equal(info.metadata.from, 'node')
  const listed = await Sandbox.list({ query: { metadata: { from: 'node' }, state: ['running'] } }).nextItems()
  assert.ok(listed.some((each) => each.sandboxId === sandbox.sandboxId))
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await again.commands.run('echo $COLOUR')).stdout, 'blue\n')
})

test('timeouts move the deadline', async () => {
  await sandbox.setTimeout(200_000)
  const { endAt } = await sandbox.getInfo()
  assert.ok(endAt.getTime() - Date.now() > 150_000)
})

test('commands give output, exit codes and deadlines', async () => {
  const done = await sandbox.commands.run('echo out; echo err >&2')
  assert.deepEqual([done.stdout, done.stderr, done.exitCode], ['out\n', 'err\n', 0])
  await assert.rejects(sandbox.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)
  await assert.rejects(sandbox.commands.run('sleep 50', { timeoutMs: 1000 }), TimeoutError)
})

test('a background command is listed, fed and ended', async () => {
  const seen = []
  const command = await sandbox.commands.run('cat', { background: true, stdin: true, onStdout: (text) => seen.push(text) })
  await sandbox.commands.sendStdin(command.pid, 'fed\n')
  await until(() => seen.join('') === 'fed\n')
  assert.ok((await sandbox.commands.list()).some((process) => process.pid === command.pid))
  assert.equal(await command.kill(), true)
  await assert.rejects(command.wait(), CommandExitError)
  await assert.rejects(sandbox.commands.connect(999999), NotFoundError)
})

test('a terminal echoes and resizes', async () => {
  let text = ''
  const terminal = await sandbox.pty.create({ rows: 24, cols: 80, onData: (data) => (text += Buffer.from(data).toString()) })
  await sandbox.pty.resize(terminal.pid, { rows: 31, cols: 99 })
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit\n'))
  await terminal.wait()
  assert.match(text, /31 99/)
})

test('files are written, read, listed, moved and removed', async () => {
  await sandbox.files.write('dir/a.txt', 'hello ř')
  assert.equal(await sandbox.files.read('dir/a.txt'), 'hello ř')
  const blob = new Uint8Array(300_000).map((_, index) => index % 251)
  await sandbox.files.write('dir/b.bin', blob.buffer)
  assert.deepEqual(await sandbox.files.read('dir/b.bin', { format: 'bytes' }), blob)
  assert.deepEqual((await sandbox.files.list('dir')).map((entry) => entry.name).sort(), ['a.txt', 'b.bin'])
  assert.equal((await sandbox.files.rename('dir/a.txt', 'dir/c.txt')).name, 'c.txt')
  assert.equal((await sandbox.files.getInfo('dir/c.txt')).owner, 'user')
  assert.equal(await sandbox.files.makeDir('dir/sub'), true)
  assert.equal(await sandbox.files.makeDir('dir/sub'), false)
  await sandbox.files.remove('dir')
  assert.equal(await sandbox.files.exists('dir'), false)
  await assert.rejects(sandbox.files.read('dir/c.txt'), NotFoundError)
})

test('a watch sees a new file', async () => {
  await sandbox.files.makeDir('watched')
  const seen = []
  const watch = await sandbox.files.watchDir('watched', (event) => seen.push(event))
  await sandbox.files.write('watched/new.txt', 'x')
  await until(() => seen.some((event) => event.name === 'new.txt' && event.type === FilesystemEventType.WRITE))
  await watch.stop()
})

test('signed links open one file', async () => {
  await sandbox.files.write('signed.txt', 'secret')
  const link = await sandbox.downloadUrl('signed.txt')
  assert.equal(await (await fetch(link)).text(), 'secret')
  assert.equal((await fetch(link.replace('signed.txt', 'other.txt'))).status, 401)
  const expired = await sandbox.downloadUrl('signed.txt', { useSignatureExpiration: -100 })
  assert.match(await (await fetch(expired)).text(), /signature is already expired/)
  const form = new FormData()
  form.append('file', new Blob(['up']), 'up.txt')
  assert.equal((await fetch(await sandbox.uploadUrl('up.txt'), { method: 'POST', body: form })).status, 200)
  assert.equal(await sandbox.files.read('up.txt'), 'up')
})

test('metrics, pause, connect', async () => {
  const metrics = await until(async () => { const found = await sandbox.getMetrics(); return found.length && found })
  assert.ok(metrics[0].memTotal > 0)
  assert.equal(await sandbox.pause(), true)
  assert.equal(await sandbox.isRunning(), false)
  await sandbox.connect()
  assert.equal(await sandbox.isRunning(), true)
})

test('get_host names a port of this server', async () => {
  const { port } = new URL(process.env.E2B_API_URL)
  assert.equal(sandbox.getHost(3000), `3000-${sandbox.sandboxId}.localhost:${port}`)
})

test('the end of the sandbox is told to a running command', async () => {
  const other = await Sandbox.create({ timeoutMs: 60_000 })
  const command = await other.commands.run('sleep 60', { background: true })
  const waiting = assert.rejects(command.wait(), TimeoutError)
  assert.equal(await other.kill(), true)
  await waiting
  assert.equal(await Sandbox.kill(other.sandboxId), false)
})
