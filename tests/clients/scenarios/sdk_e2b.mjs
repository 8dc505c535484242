// The E2B SDK for JavaScript, 1.0 and later.
import { Sandbox } from 'e2b'
import { FILE, TEXT, contains, equal, step } from './story.mjs'

const plain = (id) => id.split('-')[0]

async function listed() {
  const found = await Sandbox.list()
  const entries = found.nextItems ? await found.nextItems() : found
  return entries.map((entry) => plain(entry.sandboxId))
}

async function exitCode(command) {
  try {
    return (await sandbox.commands.run(command)).exitCode
  } catch (error) {
    return error.exitCode ?? error.message
  }
}

let sandbox
await step('create', async () => {
  sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata: { 'made-by': 'matrix' } })
})
await step('command', async () => {
  equal((await sandbox.commands.run('echo hi')).stdout, 'hi\n')
  equal(await exitCode('exit 3'), 3)
  equal((await sandbox.commands.run('echo $WHO', { envs: { WHO: 'me' } })).stdout, 'me\n')
})
await step('background command', async () => {
  const waiting = 'until [ -e /tmp/go ]; do sleep 0.05; done; echo late'
  const handle = await sandbox.commands.run(waiting, { background: true })
  contains((await sandbox.commands.list()).map((process) => process.pid), handle.pid)
  await sandbox.commands.run('touch /tmp/go')
  equal((await handle.wait()).stdout, 'late\n')
})
await step('leaves its session', async () => equal(await exitCode("setsid sh -c 'sleep 0.3; exit 3'"), 3))
await step('write and read', async () => {
  await sandbox.files.write(FILE, TEXT)
  equal(await sandbox.files.read(FILE), TEXT)
})
await step('list files', async () => {
  await sandbox.files.makeDir('folder')
  const names = (await sandbox.files.list('/home/user')).map((entry) => entry.name)
  contains(names, FILE)
  contains(names, 'folder')
  await sandbox.files.remove(FILE)
  equal(await sandbox.files.exists(FILE), false)
})
await step('terminal', async () => {
  let seen = ''
  const pty = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => (seen += new TextDecoder().decode(data)) })
  await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('echo $((6 * 7)); exit\n'))
  await pty.wait()
  contains(seen, '42')
})
await step('list', async () => contains(await listed(), plain(sandbox.sandboxId)))
await step('connect', async () => {
  const again = await Sandbox.connect(sandbox.sandboxId)
  equal((await again.commands.run('pwd')).stdout, '/home/user\n')
  await sandbox.setTimeout(90_000)
  equal(await sandbox.isRunning(), true)
})
await step('delete', async () => {
  await sandbox.kill()
  equal((await listed()).includes(plain(sandbox.sandboxId)), false)
})
process.exit(0)
