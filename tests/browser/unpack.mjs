// Unpacks the Chromium of @sparticuz/chromium into FOLDER: the program itself, and archives with fonts and with libraries that a bare system lacks.
import { createReadStream, createWriteStream } from "node:fs"
import { chmod, mkdir, rename } from "node:fs/promises"
import { pipeline } from "node:stream/promises"
import { createBrotliDecompress } from "node:zlib"

const [folder] = process.argv.slice(2)
const packed = new URL("./node_modules/@sparticuz/chromium/bin/", import.meta.url)

await mkdir(folder, { recursive: true })
for (const name of ["al2023.tar", "fonts.tar", "swiftshader.tar", "chromium"]) {
  const target = `${folder}/${name}`
  await pipeline(createReadStream(new URL(`${name}.br`, packed)), createBrotliDecompress(), createWriteStream(`${target}.part`))
  await chmod(`${target}.part`, 0o755)
  await rename(`${target}.part`, target)
}
