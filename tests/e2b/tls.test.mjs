// The JavaScript SDK with a domain and a certificate to trust, and no URL: E2B_DOMAIN and NODE_EXTRA_CA_CERTS.
import assert from 'node:assert/strict'
import { test } from 'node:test'

import { createRequire } from 'node:module'
const require = createRequire(process.env.E2B_NODE_PACKAGES)
const { Sandbox } = require('e2b')

test('everything goes over https to names below the domain', async () => {
  assert.deepEqual(Object.keys(process.env).filter((name) => name.endsWith('_URL')), [])
  const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
  try {
    assert.equal((await sandbox.commands.run('echo hi')).stdout, 'hi\n')
    await sandbox.files.write('notes.txt', 'over https')
    assert.equal(await sandbox.files.read('notes.txt'), 'over https')
    const signed = await sandbox.downloadUrl('notes.txt')
    assert.match(signed, new RegExp(`^https://49983-${sandbox.sandboxId}\\.`))
    assert.equal(await (await fetch(signed)).text(), 'over https')
    await sandbox.commands.run('python3 -m http.server 8000 -d /home/user', { background: true })
    await sandbox.commands.run('until (echo > /dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done')
    const host = sandbox.getHost(8000)
    assert.equal(host, `8000-${sandbox.sandboxId}.${process.env.E2B_DOMAIN}`)
    const page = await fetch(`https://${host}/notes.txt`)
    assert.deepEqual([page.status, await page.text()], [200, 'over https'])
    const again = await Sandbox.connect(sandbox.sandboxId)
    assert.equal((await again.commands.run('cat notes.txt')).stdout, 'over https')
  } finally {
    assert.equal(await sandbox.kill(), true)
  }
})
