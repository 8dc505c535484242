// What a scenario reports: one line of JSON for each step, as it ends. A failed `create` ends the scenario.
import fs from 'node:fs'

export const FILE = 'notes.txt'
export const TEXT = 'first line\nsecond line: ü\n'

// The packages' own log lines go to stderr; stdout belongs to the reports.
process.stdout.write = process.stderr.write.bind(process.stderr)

export async function step(name, body) {
  let error = null
  try {
    await body()
  } catch (caught) {
    console.error(caught)
    error = `${caught?.name ?? 'Error'}: ${caught?.message ?? caught}`
  }
  fs.writeSync(1, JSON.stringify({ step: name, error }) + '\n')
  if (error && name === 'create') process.exit(1)
}

export function equal(seen, wanted) {
  if (JSON.stringify(seen) !== JSON.stringify(wanted)) {
    throw new Error(`saw ${JSON.stringify(seen)}, wanted ${JSON.stringify(wanted)}`)
  }
}

export function contains(seen, wanted) {
  if (!seen.includes(wanted)) throw new Error(`${JSON.stringify(wanted)} is not in ${JSON.stringify(seen)}`)
}
