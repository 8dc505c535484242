// The TypeScript SDK, unmodified, against the server that test_typescript.py started.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'

const { Daytona, Image } = createRequire(process.env.DAYTONA_NODE_PACKAGES)('@daytonaio/sdk')
const daytona = new Daytona()
let sandbox

before(async () => { sandbox = await daytona.create({ language: 'typescript', labels: { suite: 'ts' } }) })
after(async () => {
  await daytona.delete(sandbox)
  await daytona[Symbol.asyncDispose]?.()
})

test('a sandbox runs and is found', async () => {
  assert.equal(sandbox.state, 'started')
  assert.equal((await daytona.get(sandbox.id)).id, sandbox.id)
  const found = []
  for await (const one of daytona.list({ labels: { suite: 'ts' } })) found.push(one.id)
  assert.deepEqual(found, [sandbox.id])
})

test('commands and code', async () => {
  const done = await sandbox.process.executeCommand('echo $A; exit 5', '/tmp', { A: 'set' })
  assert.deepEqual([done.exitCode, done.result], [5, 'set\n'])
  const typed = await sandbox.process.codeRun('const n: number = 6; console.log(n * 7)')
  assert.deepEqual([typed.exitCode, typed.result], [0, '42\n'])
})

test('files', async () => {
  const bytes = randomBytes(3_000_000)
  await sandbox.fs.uploadFile(bytes, 'ts/large.bin')
  assert.ok(bytes.equals(await sandbox.fs.downloadFile('ts/large.bin')))
  assert.deepEqual((await sandbox.fs.listFiles('ts')).map((one) => one.name), ['large.bin'])
  assert.equal((await sandbox.fs.getFileDetails('ts/large.bin')).size, bytes.length)
  await sandbox.fs.deleteFile('ts', true)
  await assert.rejects(sandbox.fs.downloadFile('ts/large.bin'))
})

test('sessions: state, background, logs followed', async () => {
  await sandbox.process.createSession('ts')
  await sandbox.process.executeSessionCommand('ts', { command: 'cd /tmp; export K=v' })
  const done = await sandbox.process.executeSessionCommand('ts', { command: 'echo $PWD $K; echo e >&2' })
  assert.deepEqual([done.stdout, done.stderr, done.exitCode], ['/tmp v\n', 'e\n', 0])
  const started = await sandbox.process.executeSessionCommand('ts', { command: 'for i in 1 2; do echo $i; sleep 0.1; done', runAsync: true })
  let out = ''
  await sandbox.process.getSessionCommandLogs('ts', started.cmdId, (text) => { out += text }, () => {})
  assert.equal(out, '1\n2\n')
  await sandbox.process.deleteSession('ts')
})

test('a terminal', async () => {
  let seen = ''
  const terminal = await sandbox.process.createPty({ id: 'ts', cols: 91, rows: 31, onData: (data) => { seen += Buffer.from(data) } })
  await terminal.waitForConnection()
  await terminal.sendInput('stty size; exit 6\n')
  const end = await terminal.wait()
  assert.equal(end.exitCode, 6)
  assert.match(seen, /31 91/)
})

test('the interpreter keeps variables', async () => {
  await sandbox.codeInterpreter.runCode('x = 20')
  const done = await sandbox.codeInterpreter.runCode('print(x + 1)')
  assert.equal(done.stdout, '21\n')
})

test('git', async () => {
  await sandbox.process.executeCommand('git init -q -b main /tmp/origin && cd /tmp/origin && git -c user.name=a -c user.email=b@c commit -q --allow-empty -m first')
  await sandbox.git.clone('/tmp/origin', 'cloned')
  assert.equal((await sandbox.git.status('cloned')).currentBranch, 'main')
  await sandbox.fs.uploadFile(Buffer.from('x'), 'cloned/x')
  await sandbox.git.add('cloned', ['x'])
  assert.equal((await sandbox.git.commit('cloned', 'second', 'Ada', 'ada@example.com')).sha.length, 40)
})

test('stop and start keep files', async () => {
  await sandbox.fs.uploadFile(Buffer.from('kept'), 'kept')
  await sandbox.stop()
  assert.equal(sandbox.state, 'stopped')
  await sandbox.start()
  assert.equal(String(await sandbox.fs.downloadFile('kept')), 'kept')
})

test('a declarative image with files of its own, built while its log is shown', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'cove-daytona-'))
  writeFileSync(join(folder, 'small.txt'), 'sent')
  // In more than one part.
  writeFileSync(join(folder, 'large.bin'), randomBytes(12 << 20))
  const mark = randomBytes(8).toString('hex')
  const image = Image.base(process.env.DAYTONA_TEST_IMAGE)
    .addLocalFile(join(folder, 'small.txt'), '/srv/small.txt')
    .addLocalDir(folder, '/srv/folder')
    .runCommands(`echo building ${mark}; sleep 2`)
    .env({ MARK: mark })
  const lines = []
  const built = await daytona.create({ image }, { timeout: 150, onSnapshotCreateLogs: (text) => lines.push(text) })
  try {
    assert.match(lines.join('\n'), new RegExp(`building ${mark}`))
    const said = await built.process.executeCommand('cat /srv/small.txt; echo -$MARK; wc -c < /srv/folder/large.bin')
    assert.deepEqual(said.result.trim().split(/\s+/), [`sent-${mark}`, String(12 << 20)])
  } finally {
    await daytona.delete(built)
  }
})

test('a snapshot is made, used and deleted', async () => {
  const name = `ts-${randomBytes(4).toString('hex')}`
  const made = await daytona.snapshot.create({ name, image: Image.base(process.env.DAYTONA_TEST_IMAGE).runCommands('echo ts > /home/user/made') }, { onLogs: () => {} })
  assert.deepEqual([made.name, made.state], [name, 'active'])
  const from = await daytona.create({ snapshot: name })
  try {
    assert.equal((await from.process.executeCommand('cat /home/user/made')).result, 'ts\n')
  } finally {
    await daytona.delete(from)
  }
  await daytona.snapshot.delete(await daytona.snapshot.get(name))
  await assert.rejects(daytona.snapshot.get(name))
})

test('a volume is shared', async () => {
  const volume = await daytona.volume.get(`ts-${randomBytes(4).toString('hex')}`, true)
  const one = await daytona.create({ volumes: [{ volumeId: volume.id, mountPath: '/mnt/shared' }] })
  const other = await daytona.create({ volumes: [{ volumeId: volume.name, mountPath: '/mnt/shared' }] })
  try {
    await one.fs.uploadFile(Buffer.from('shared'), '/mnt/shared/file')
    assert.equal(String(await other.fs.downloadFile('/mnt/shared/file')), 'shared')
  } finally {
    await daytona.delete(one)
    await daytona.delete(other)
  }
  await daytona.volume.delete(volume)
})
