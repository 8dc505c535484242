// ComputeSDK: one interface, the vendors' packages behind it.
import { FILE, TEXT, contains, equal, step } from './story.mjs'

const provider = process.env.DAYTONA_API_URL
  ? (await import('@computesdk/daytona')).daytona({ apiKey: process.env.DAYTONA_API_KEY })
  : (await import('@computesdk/e2b')).e2b({ apiKey: process.env.E2B_API_KEY })

let sandbox
await step('create', async () => {
  sandbox = await provider.sandbox.create()
})
await step('command', async () => {
  equal((await sandbox.runCommand('echo hi')).stdout.trim(), 'hi')
  equal((await sandbox.runCommand('exit 3')).exitCode, 3)
})
await step('write and read', async () => {
  await sandbox.filesystem.writeFile(`/tmp/${FILE}`, TEXT)
  equal((await sandbox.filesystem.readFile(`/tmp/${FILE}`)).trim(), TEXT.trim())
})
await step('list files', async () => {
  contains((await sandbox.filesystem.readdir('/tmp')).map((entry) => entry.name), FILE)
})
await step('list', async () => {
  contains((await provider.sandbox.list()).map((entry) => entry.sandboxId), sandbox.sandboxId)
})
await step('delete', async () => {
  await sandbox.destroy()
})
process.exit(0)
