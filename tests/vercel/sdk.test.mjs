// The JavaScript SDK, unmodified, against the server that test_sdk.py started: only its `fetch` leads here.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { createRequire } from 'node:module'
import { after, before, test } from 'node:test'

const { Sandbox, Snapshot, Drive } = createRequire(process.env.VERCEL_NODE_PACKAGES)('@vercel/sandbox')
const here = process.env.COVE_VERCEL_API
const to = {
  token: process.env.COVE_TEST_KEY,
  teamId: 'team_1',
  projectId: 'prj_1',
  fetch: (url, options) => globalThis.fetch(String(url).replace('https://vercel.com/api', here), options),
}
const said = async (sandbox, script, options = {}) => {
  const done = await sandbox.runCommand({ cmd: 'sh', args: ['-c', script], ...options })
  return { code: done.exitCode, out: await done.stdout(), err: await done.stderr() }
}
let sandbox

before(async () => {
  sandbox = await Sandbox.create({
    ...to, name: 'suite', ports: [3000], timeout: 600_000, env: { FOO: 'bar' }, tags: { app: 'x' }, resources: { vcpus: 1 },
    networkPolicy: 'deny-all',
  })
})
after(async () => { await sandbox.delete() })

test('a sandbox runs, has its user and its folder, and is found', async () => {
  assert.equal(sandbox.status, 'running')
  assert.equal(sandbox.cwd, '/vercel/sandbox')
  assert.deepEqual(await said(sandbox, 'id -un; pwd; echo $FOO'), { code: 0, out: 'vercel-sandbox\n/vercel/sandbox\nbar\n', err: '' })
  assert.equal((await Sandbox.get({ ...to, name: 'suite' })).name, 'suite')
  const found = await Sandbox.list({ ...to, tags: { app: 'x' } })
  assert.deepEqual(found.sandboxes.map((one) => one.name), ['suite'])
  assert.deepEqual((await Sandbox.list({ ...to, namePrefix: 'nobody' })).sandboxes, [])
})

test('commands: exit codes, both streams, folders, variables, root', async () => {
  assert.deepEqual(await said(sandbox, 'echo out; echo err >&2; exit 3'), { code: 3, out: 'out\n', err: 'err\n' })
  assert.equal((await said(sandbox, 'pwd; echo $A', { cwd: '/tmp', env: { A: 'set' } })).out, '/tmp\nset\n')
  assert.equal((await said(sandbox, 'id -u', { sudo: true })).out, '0\n')
  const words = await sandbox.runCommand('printf', ['%s|', 'a b', '$HOME', "it's"])
  assert.equal(await words.stdout(), "a b|$HOME|it's|")
})

test('output comes while a command runs, and characters are whole', async () => {
  const command = await sandbox.runCommand({
    cmd: 'sh', args: ['-c', 'printf "first\\n"; until [ -e go ]; do sleep 0.02; done; printf "grüße €\\n"'], detached: true,
  })
  assert.equal(command.exitCode, null)
  let text = ''
  for await (const line of command.logs()) {
    text += line.data
    if (text === 'first\n') await sandbox.writeFiles([{ path: 'go', content: Buffer.from('') }])
  }
  assert.equal(text, 'first\ngrüße €\n')
  assert.equal((await command.wait()).exitCode, 0)
})

test('a command is ended by a signal', async () => {
  const command = await sandbox.runCommand({ cmd: 'sleep', args: ['1000'], detached: true })
  await command.kill('SIGKILL')
  assert.equal((await command.wait()).exitCode, 137)
  const same = await sandbox.getCommand(command.cmdId)
  assert.equal(same.exitCode, 137)
})

test('files go in and come out', async () => {
  const bytes = randomBytes(3_000_000)
  await sandbox.writeFiles([
    { path: 'deep/er/large.bin', content: bytes },
    { path: '/tmp/small.txt', content: Buffer.from('hello') },
    { path: 'run.sh', content: Buffer.from('#!/bin/sh\necho ran\n'), mode: 0o755 },
  ])
  assert.ok(bytes.equals(await sandbox.readFileToBuffer({ path: 'deep/er/large.bin' })))
  assert.equal((await sandbox.readFileToBuffer({ path: '/tmp/small.txt' })).toString(), 'hello')
  assert.equal(await sandbox.readFileToBuffer({ path: 'nothing' }), null)
  assert.equal((await said(sandbox, './run.sh; stat -c %U deep/er/large.bin')).out, 'ran\nvercel-sandbox\n')
  await sandbox.mkDir('made')
  await assert.rejects(sandbox.mkDir('no/such/parent'))
  assert.equal((await said(sandbox, 'test -d made && echo there')).out, 'there\n')
})

test('the SDK\'s own file system', async () => {
  await sandbox.fs.writeFile('/vercel/sandbox/notes.txt', 'one')
  assert.equal(await sandbox.fs.readFile('/vercel/sandbox/notes.txt', 'utf8'), 'one')
  assert.ok((await sandbox.fs.readdir('/vercel/sandbox')).includes('notes.txt'))
  assert.equal((await sandbox.fs.stat('/vercel/sandbox/notes.txt')).size, 3)
})

test('a port has a route that leads to it', async () => {
  const [route] = sandbox.routes
  assert.equal(route.port, 3000)
  assert.match(route.url, /^http:\/\/3000-[a-z0-9]{20}\.localhost:\d+$/)
  assert.ok(sandbox.domain(3000).includes(route.subdomain))
})

test('time is extended', async () => {
  const before = sandbox.expiresAt.getTime()
  await sandbox.extendTimeout(60_000)
  const now = await Sandbox.get({ ...to, name: 'suite' })
  assert.ok(now.expiresAt.getTime() >= before + 59_000, `${now.expiresAt} ${new Date(before)}`)
})

test('network policies are told in another form than they are asked for', async () => {
  assert.equal(sandbox.networkPolicy, 'deny-all')
  await sandbox.updateNetworkPolicy({ allow: ['*'], subnets: { deny: ['10.0.0.0/8'] } })
  const now = await Sandbox.get({ ...to, name: 'suite' })
  assert.deepEqual(now.networkPolicy, { allow: ['*'], subnets: { allow: [], deny: ['10.0.0.0/8'] } })
  await sandbox.updateNetworkPolicy('deny-all')
})

test('tags and ports change', async () => {
  await sandbox.update({ tags: { app: 'x', more: 'y' }, ports: [3000, 4000] })
  const now = await Sandbox.get({ ...to, name: 'suite' })
  assert.deepEqual([now.tags, now.routes.map((route) => route.port)], [{ app: 'x', more: 'y' }, [3000, 4000]])
})

test('a stop keeps files, and the next command begins another session', async () => {
  const own = await Sandbox.create({ ...to, name: 'stopping', networkPolicy: 'deny-all' })
  await own.writeFiles([{ path: 'kept', content: Buffer.from('kept') }])
  const first = own.currentSession().sessionId
  await own.stop()
  assert.equal((await said(own, 'cat kept')).out, 'kept')
  assert.notEqual(own.currentSession().sessionId, first)
  await own.delete()
  await assert.rejects(Sandbox.get({ ...to, name: 'stopping' }))
  const again = await Sandbox.getOrCreate({ ...to, name: 'stopping', networkPolicy: 'deny-all' })
  assert.equal((await said(again, 'cat kept')).code, 1)
  await again.delete()
})

test('a snapshot ends its session, and others start from it', async () => {
  const own = await Sandbox.create({ ...to, networkPolicy: 'deny-all' })
  await own.writeFiles([{ path: 'kept', content: Buffer.from('of the first') }])
  const snapshot = await own.snapshot()
  assert.equal(snapshot.status, 'created')
  const copy = await Sandbox.create({ ...to, networkPolicy: 'deny-all', source: { type: 'snapshot', snapshotId: snapshot.snapshotId } })
  assert.equal((await said(copy, 'cat kept')).out, 'of the first')
  assert.equal((await Snapshot.get({ ...to, snapshotId: snapshot.snapshotId })).snapshotId, snapshot.snapshotId)
  await copy.delete()
  await own.delete()
  await snapshot.delete()
  await assert.rejects(Snapshot.get({ ...to, snapshotId: snapshot.snapshotId }))
})

test('a fork has the files of its source and its own from then on', { skip: !Sandbox.fork }, async () => {
  await sandbox.writeFiles([{ path: 'shared', content: Buffer.from('both') }])
  const copy = await Sandbox.fork({ ...to, sourceSandbox: 'suite', name: 'copy' })
  await said(copy, 'echo mine > shared')
  assert.equal((await said(sandbox, 'cat shared')).out, 'both')
  assert.equal((await said(copy, 'cat shared; id -un')).out, 'mine\nvercel-sandbox\n')
  await copy.delete()
})

test('a drive outlives its sandboxes', { skip: !Drive }, async () => {
  const drive = await Drive.getOrCreate({ ...to, name: 'shelf' })
  const first = await Sandbox.create({ ...to, networkPolicy: 'deny-all', mounts: { '/shelf': drive } })
  assert.equal((await said(first, 'echo kept > /shelf/file', { sudo: true })).code, 0)
  await first.delete()
  const second = await Sandbox.create({ ...to, networkPolicy: 'deny-all', mounts: { '/shelf': drive } })
  assert.equal((await said(second, 'cat /shelf/file')).out, 'kept\n')
  await second.delete()
  await drive.delete()
})

test('one that keeps nothing goes with its session', async () => {
  const own = await Sandbox.create({ ...to, name: 'fleeting', persistent: false, networkPolicy: 'deny-all' })
  await own.stop()
  await assert.rejects(Sandbox.get({ ...to, name: 'fleeting' }))
})
