# Synthetic data and answers from R, by the command line: no package of R is needed.
# Rscript examples/from_r.R; PGMKIT names the command if it is not on the path.

pgmkit <- function(...) {
  command <- Sys.getenv("PGMKIT", "pgmkit")
  # R puts its own libraries first, which a Python of another build may not load.
  said <- suppressWarnings(
    system2(command, shQuote(c(...)), stdout = TRUE, env = "LD_LIBRARY_PATH=")
  )
  status <- attr(said, "status")
  if (!is.null(status)) stop(sprintf("pgmkit ended with exit code %d", status))
  said
}

# A data frame is written as a file. esoph comes with R and is public.
cases <- esoph[rep(seq_len(nrow(esoph)), esoph$ncontrols), c("agegp", "alcgp", "tobgp")]
write.csv(cases, "cases.csv", row.names = FALSE)

# The schema says what each column may hold; drafts are for public data only.
invisible(pgmkit("schema", "draft", "cases.csv", "--assume-public", "-o", "cases.yaml"))
invisible(pgmkit(
  "synth", "cases.csv", "--schema", "cases.yaml", "--epsilon", "1", "--delta", "1e-6",
  "--mechanism", "mst", "--out", "synthetic.csv", "--save", "cases.pgm", "--yes"
))

# Records come back as a data frame, with the factor levels of the original.
synthetic <- read.csv("synthetic.csv")
for (name in names(synthetic)) {
  synthetic[[name]] <- factor(synthetic[[name]], levels = levels(cases[[name]]))
}
print(round(prop.table(table(synthetic$agegp, synthetic$alcgp), 1), 2))

# Answers with error bars come from the release, without drawing records.
writeLines(pgmkit("query", "cases.pgm", "alcgp | agegp = 25-34", "--error-bars"))
