import { defineConfig } from "vitest/config"

export default defineConfig({ test: { include: ["official.test.mjs"], testTimeout: 30000, hookTimeout: 30000 } })
