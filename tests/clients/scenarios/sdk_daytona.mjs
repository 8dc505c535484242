// The Daytona SDK for TypeScript, as its calls were named at the time.
import * as sdk from '@daytonaio/sdk'
import { FILE, TEXT, contains, equal, step } from './story.mjs'

const daytona = new (sdk.Daytona ?? sdk.default.Daytona)()
const FOLDER = '/tmp/matrix'

async function listed() {
  const found = await daytona.list()
  if (found[Symbol.asyncIterator]) {
    const ids = []
    for await (const entry of found) ids.push(entry.id)
    return ids
  }
  return (found.items ?? found).map((entry) => entry.id)
}

let sandbox
await step('create', async () => {
  sandbox = await daytona.create({ language: 'typescript' })
})
await step('command', async () => {
  equal((await sandbox.process.executeCommand('echo hi')).result.trimEnd(), 'hi')
  equal((await sandbox.process.executeCommand('exit 3')).exitCode, 3)
})
await step('code', async () => {
  equal((await sandbox.process.codeRun('const x: number = 6; console.log(x * 7)')).result.trimEnd(), '42')
})
await step('session', async () => {
  await sandbox.process.createSession('s1')
  await sandbox.process.executeSessionCommand('s1', { command: 'cd /tmp; export WHO=me' })
  const told = await sandbox.process.executeSessionCommand('s1', { command: 'echo $PWD $WHO' })
  contains(told.output, '/tmp me')
  await sandbox.process.deleteSession('s1')
})
await step('write and read', async () => {
  await sandbox.fs.createFolder(FOLDER, '755')
  await sandbox.fs.uploadFile(Buffer.from(TEXT), `${FOLDER}/${FILE}`)
  equal((await sandbox.fs.downloadFile(`${FOLDER}/${FILE}`)).toString(), TEXT)
})
await step('list files', async () => {
  contains((await sandbox.fs.listFiles(FOLDER)).map((entry) => entry.name), FILE)
  contains((await sandbox.fs.findFiles(FOLDER, 'second')).map((match) => match.file), `${FOLDER}/${FILE}`)
  await sandbox.fs.deleteFile(`${FOLDER}/${FILE}`)
  equal((await sandbox.fs.listFiles(FOLDER)).length, 0)
})
await step('list', async () => contains(await listed(), sandbox.id))
await step('get', async () => equal((await daytona.get(sandbox.id)).id, sandbox.id))
await step('preview link', async () => contains((await sandbox.getPreviewLink(3000)).url, sandbox.id))
await step('stop and start', async () => {
  await daytona.stop(sandbox)
  await daytona.start(sandbox)
  equal((await sandbox.process.executeCommand('echo back')).result.trimEnd(), 'back')
})
await step('delete', async () => {
  await (daytona.delete ?? daytona.remove).call(daytona, sandbox)
  equal((await listed()).includes(sandbox.id), false)
})
process.exit(0)
