// E2B's code interpreter SDK for JavaScript.
import { Sandbox } from '@e2b/code-interpreter'
import { FILE, TEXT, equal, step } from './story.mjs'

let sandbox
await step('create', async () => {
  sandbox = await Sandbox.create({ timeoutMs: 120_000 })
})
await step('code', async () => {
  await sandbox.runCode('x = 6')
  equal((await sandbox.runCode('x * 7')).text, '42')
  equal((await sandbox.runCode("print('hi')")).logs.stdout.join(''), 'hi\n')
  equal((await sandbox.runCode('1 / 0')).error.name, 'ZeroDivisionError')
  equal((await sandbox.runCode('6 * 7', { language: 'js' })).text, '42')
})
await step('command', async () => equal((await sandbox.commands.run('echo hi')).stdout, 'hi\n'))
await step('write and read', async () => {
  await sandbox.files.write(FILE, TEXT)
  equal(await sandbox.files.read(FILE), TEXT)
})
await step('delete', async () => {
  await sandbox.kill()
})
process.exit(0)
