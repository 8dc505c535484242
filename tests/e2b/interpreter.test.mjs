// The JavaScript code interpreter against a server that is there already: E2B_* in the environment say where.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'

import { createRequire } from 'node:module'
const require = createRequire(process.env.E2B_INTERPRETER_PACKAGES)
const { Sandbox } = require('@e2b/code-interpreter')

let sandbox

before(async () => {
  sandbox = await Sandbox.create({ timeoutMs: 120_000 })
})

after(async () => {
  await sandbox.kill()
})

test('variables stay, output is heard, errors are told', async () => {
  const heard = []
  await sandbox.runCode('x = 6\nprint("made")', { onStdout: (message) => heard.push(message.line) })
  assert.deepEqual(heard, ['made\n'])
  assert.equal((await sandbox.runCode('x * 7')).text, '42')
  assert.equal((await sandbox.runCode('1 / 0')).error.name, 'ZeroDivisionError')
})

test('a figure comes as an image and as a chart', async () => {
  const execution = await sandbox.runCode('import matplotlib.pyplot as plt\nplt.bar(["a"], [3])\nNone')
  assert.ok(execution.results[0].png)
  assert.equal(execution.results[0].chart.type, 'bar')
})

test('a table comes as HTML and as data', async () => {
  const execution = await sandbox.runCode('import pandas\npandas.DataFrame({"n": [1, 2]})')
  assert.match(execution.results[0].html, /<table/)
  assert.deepEqual(execution.results[0].data, { n: [1, 2] })
})

test('contexts and languages', async () => {
  const context = await sandbox.createCodeContext({ cwd: '/tmp' })
  assert.equal((await sandbox.runCode('import os; os.getcwd()', { context })).text, '/tmp')
  await sandbox.removeCodeContext(context)
  assert.equal((await sandbox.runCode('const n: number = 5; n', { language: 'typescript' })).text, '5')
})
