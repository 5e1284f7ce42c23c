module polynya/reducer

go 1.24
