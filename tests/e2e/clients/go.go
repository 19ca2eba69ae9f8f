// Go's mime/multipart. Usage: go run go.go URL PICTURE, with a name on each line of stdin.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	picture, err := os.ReadFile(os.Args[2])
	check(err)
	names := bufio.NewScanner(os.Stdin)
	for names.Scan() {
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		file, err := form.CreateFormFile("files", names.Text())
		check(err)
		_, err = file.Write(picture)
		check(err)
		check(form.Close())
		response, err := http.Post(os.Args[1], form.FormDataContentType(), &body)
		check(err)
		answer, err := io.ReadAll(response.Body)
		check(err)
		fmt.Println(string(answer))
	}
}
