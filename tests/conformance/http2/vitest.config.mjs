import { defineConfig } from "vitest/config"

export default defineConfig({ test: { include: ["official.test.mjs"], hookTimeout: 30000 } })
