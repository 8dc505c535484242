// Mastra's sandboxes for E2B and Daytona, through its workspace interface.
import { TEXT, contains, equal, step } from './story.mjs'

const Sandbox = process.env.DAYTONA_API_URL
  ? (await import('@mastra/daytona')).DaytonaSandbox
  : (await import('@mastra/e2b')).E2BSandbox

let sandbox
await step('create', async () => {
  const template = process.env.MATRIX_TEMPLATE
  sandbox = new Sandbox({ id: `matrix-${process.pid}`, timeout: 120_000, ...(template && { template }) })
  await sandbox.start()
})
await step('command', async () => {
  equal((await sandbox.executeCommand('echo', ['hi'])).stdout.trim(), 'hi')
  equal((await sandbox.executeCommand('sh', ['-c', 'exit 3'])).exitCode, 3)
})
await step('background command', async () => {
  const handle = await sandbox.processes.spawn('read line; echo got $line')
  await handle.sendStdin('it\n')
  contains((await handle.wait()).stdout, 'got it')
})
await step('write and read', async () => {
  if (!sandbox.writeFiles) return
  await sandbox.writeFiles([{ path: '/tmp/notes.txt', content: TEXT }])
  equal((await sandbox.executeCommand('cat', ['/tmp/notes.txt'])).stdout.trim(), TEXT.trim())
})
await step('delete', async () => {
  await sandbox.destroy()
})
process.exit(0)
